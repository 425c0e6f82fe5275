"""The sizes that an engine really gets: trtllm-build changes what it is told, mostly in silence.

In upstream's order: max_seq_len from the model where none is given; max_num_tokens cut to a full
batch; max_draft_len from the checkpoint; then, with a speculative mode, max_seq_len grows by the
draft tokens (and by EAGLE's layers) and max_num_tokens is raised to one full verify step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.engine.trtllm.flags import FlagValue, with_default
from toolkit.recipe.release import Release

MODE_NUMBERS = {
    None: 1,
    "draft_tokens_external": 2,
    "medusa": 4,
    "lookahead_decoding": 8,
    "explicit_draft_tokens": 16,
    "eagle": 32,
}


@dataclass(frozen=True)
class Limits:
    """What build_config of the engine's config.json will say."""

    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_num_tokens: int
    opt_num_tokens: int
    max_beam_width: int
    max_draft_len: int
    mode: int  # a bit flag

    def changes(self, flags: Mapping[str, FlagValue]) -> list[str]:
        """Where it differs from what the command line says, in words."""
        said = [
            (name, flags[name], getattr(self, name))
            for name in ("max_input_len", "max_seq_len", "max_num_tokens", "max_draft_len")
            if name in flags
        ]
        return [f"{name} {asked} becomes {made}" for name, asked, made in said if asked != made]


def effective_limits(
    flags: Mapping[str, FlagValue], release: Release, pretrained: Mapping[str, Any]
) -> Limits:
    """From trtllm-build's flags and the checkpoint's config.json (as far as it is known)."""

    def number(name: str) -> int:
        return int(with_default(flags, name, release) or 0)

    batch, beams = number("max_batch_size"), number("max_beam_width")
    seq_len = number("max_seq_len") or _longest(pretrained)
    input_len = min(number("max_input_len"), seq_len)
    num_tokens = min(number("max_num_tokens"), seq_len * batch)
    mode, draft_len = _mode_and_draft_len(flags, release, pretrained)
    if mode is not None:
        seq_len += draft_len
        if mode == "eagle":
            seq_len += int(pretrained.get("num_eagle_layers", 0))
        num_tokens = max(num_tokens, batch * (draft_len + 1))
    return Limits(
        max_batch_size=batch,
        max_input_len=input_len,
        max_seq_len=seq_len,
        max_num_tokens=num_tokens,
        opt_num_tokens=number("opt_num_tokens") or batch * beams,
        max_beam_width=beams,
        max_draft_len=draft_len,
        mode=MODE_NUMBERS[mode],
    )


def _mode_and_draft_len(
    flags: Mapping[str, FlagValue], release: Release, pretrained: Mapping[str, Any]
) -> tuple[str | None, int]:
    mode = flags.get("speculative_decoding_mode")
    beams = pretrained.get("redrafter_num_beams")
    per_beam = pretrained.get("redrafter_draft_len_per_beam")
    if beams and per_beam:
        return "explicit_draft_tokens", int(beams) * int(per_beam)
    said, stored = int(flags.get("max_draft_len", 0)), pretrained.get("max_draft_len")
    # 0.16 always takes the checkpoint's number, later releases only when none is given.
    if stored is not None and (release == (0, 16) or not said):
        said = int(stored)
    return (None if mode is None else str(mode)), said


def _longest(pretrained: Mapping[str, Any]) -> int:
    """max_position_embeddings, times the factor of those rope scalings that stretch it."""
    positions = pretrained.get("max_position_embeddings")
    if not positions:
        return 2048
    scaling = pretrained.get("rotary_scaling") or {}
    kind = scaling.get("type", scaling.get("rope_type"))
    factor = 1 if kind in ("su", "longrope", "llama3") else scaling.get("factor", 1)
    return int(positions * factor)
