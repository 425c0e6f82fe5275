"""Build the engine of a recipe's drafting heads for backend `cpu`."""

from __future__ import annotations

from pathlib import Path

from toolkit.checkpoint.heads.source import HEAD_FILES, open_head_files
from toolkit.checkpoint.read import Checkpoint
from toolkit.engine.cpu import captured_for
from toolkit.recipe.schema import Recipe
from toolkit.registry import CPU_HEADS, DRAFTERS, HEADS


def build_head_engine(checkpoint_dir: Path, out: Path, recipe: Recipe) -> None:
    """From the heads' files, on this disk by now, and the target's checkpoint, into `out`.

    CheckpointError with every problem, by tensor and shape, when they were made for another target.
    """
    options = recipe.speculation
    source = DRAFTERS[options.drafter].cpu_heads(options)
    files = HEADS[options.drafter].files if options.drafter in HEADS else HEAD_FILES
    heads = open_head_files(source.checkpoint, source.revision, files, offline=True)
    target = Checkpoint(checkpoint_dir)
    reads = captured_for(recipe, "target")(int(target.config["num_hidden_layers"]))
    CPU_HEADS[options.drafter](heads, target, out, recipe.engine, reads)
