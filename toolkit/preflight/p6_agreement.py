"""P6: engines that work together were built with what working together needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.engine.trtllm.command import drafter_flags
from toolkit.engine.trtllm.directory import TrtEngine
from toolkit.preflight.facts import Facts
from toolkit.preflight.report import Finding

# A flag that a drafter asks for -> where an engine's build_config says what it got.
IN_BUILD_CONFIG: Mapping[str, tuple[str, ...]] = {
    "use_paged_context_fmha": ("plugin_config", "use_paged_context_fmha"),
    "gather_generation_logits": ("gather_generation_logits",),
}
WHY = {
    "use_paged_context_fmha": "KV blocks cannot be reused without it",
    "gather_generation_logits": "accepting by logits hangs without it",
}
_SWITCHES: Mapping[Any, bool] = {"enable": True, "disable": False}


def check(facts: Facts) -> Iterator[Finding]:
    """Each engine against what the drafter needs of it, then all engines against each other."""
    for role, engine in facts.engines.items():
        if role in facts.models:
            yield from _needed(facts, role, engine)
    yield from _alike(facts.engines)


def _needed(facts: Facts, role: str, engine: TrtEngine) -> Iterator[Finding]:
    where = f"{engine.directory}/config.json"
    for flag, needed in drafter_flags(facts.recipe, role).items():
        if flag not in IN_BUILD_CONFIG:
            continue  # the mode and the draft length are P2's
        found: Any = engine.build
        for key in IN_BUILD_CONFIG[flag]:
            found = found.get(key) if isinstance(found, Mapping) else None
        if bool(found) != _SWITCHES.get(needed, needed):
            value = needed if isinstance(needed, str) else ""
            yield Finding(
                where,
                f"{flag} is {found}, drafter {facts.recipe.speculation.drafter} needs it in the "
                f"{role} engine ({WHY[flag]}); build it again with --{flag} {value}".rstrip(),
            )
    kind = str(engine.build.get("kv_cache_type", "PAGED")).upper()
    if not kind.endswith("PAGED"):
        yield Finding(
            where,
            f"kv_cache_type is {kind}; the executor runs on a paged KV cache only: build the "
            f"{role} engine again without --kv_cache_type",
        )


def _alike(engines: Mapping[str, TrtEngine]) -> Iterator[Finding]:
    """What the draft's engine and the target's must have in common."""
    target = engines.get("target")
    if target is None:
        return
    for role, engine in engines.items():
        for name, ours, theirs in (
            ("version", engine.version, target.version),
            ("logits_dtype", *_both("logits_dtype", engine.pretrained, target.pretrained)),
            ("max_seq_len without draft tokens", _text_len(engine), _text_len(target)),
        ):
            if role != "target" and ours != theirs:
                yield Finding(
                    f"{engine.directory}/config.json",
                    f"{name} is {ours}, the target engine's is {theirs} "
                    f"({target.directory}/config.json); build both from this recipe",
                )


def _both(key: str, *configs: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(config.get(key) for config in configs)


def _text_len(engine: TrtEngine) -> int:
    """A mode adds its draft tokens to what the command line said, EAGLE its layers too."""
    if engine.mode is None:
        return int(engine.build["max_seq_len"])
    layers = int(engine.pretrained.get("num_eagle_layers") or 0)
    return int(engine.build["max_seq_len"]) - engine.max_draft_len - layers
