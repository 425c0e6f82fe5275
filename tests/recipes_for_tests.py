"""Recipes over tiny checkpoints, for tests of what is done with recipes."""

from pathlib import Path

from tests.tiny import write_checkpoint

LIMITS = "engine: {max_batch_size: 2, max_input_len: 32, max_seq_len: 64}\n"


def write_recipe(folder: Path, draft: str | None = None, extra: str = "") -> Path:
    """`folder/r.yaml` on `folder/model`; `draft` is the inside of the draft's mapping."""
    if not (folder / "model").exists():
        write_checkpoint(folder / "model")
    speculation = (
        f"speculation:\n  drafter: draft_target\n  draft: {{{draft}}}\n"
        if draft
        else "speculation: {drafter: ngram}\n"
    )
    text = "name: tiny\ntarget: {checkpoint: ./model, dtype: float32}\n"
    path = folder / "r.yaml"
    path.write_text(text + speculation + LIMITS + extra, encoding="utf-8")
    return path
