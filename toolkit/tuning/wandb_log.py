"""Weights & Biases: a run with the verdict's numbers, a table of points, and the files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.optional import require
from toolkit.tuning.results import Results, document

COLUMNS = (
    "batch_size", "domain", "k", "acceptance_rate", "acceptance_length", "tpot_p50_ns",
    "tpot_p99_ns", "output_throughput",
)  # fmt: skip


def log_to_wandb(results: Results, files: Mapping[str, Path], project: str, directory: Path) -> str:
    """Where the run is: on this disk, for `wandb sync` later, unless WANDB_MODE is online."""
    wandb = require("wandb", extra="wandb", why="--wandb")
    found = document(results, whole=False)
    with wandb.init(
        project=project,
        name=results.recipe.name,
        job_type="tune",
        config={"recipe": found["recipe"], "settings": found["settings"]},
        dir=str(directory),
        mode=os.environ.get("WANDB_MODE", "offline"),
    ) as run:
        table = wandb.Table(columns=list(COLUMNS))
        for cell in found["summary"]:
            table.add_data(*(cell[name] for name in COLUMNS))
        run.log({"points": table, **_numbers(results)})
        run.summary["verdict"] = results.verdict
        artifact = wandb.Artifact(f"tune-{results.recipe.name}", type="tune-results")
        for path in files.values():
            artifact.add_file(str(path))
        run.log_artifact(artifact)
        return str(run.url or Path(run.dir).parent)


def _numbers(results: Results) -> dict[str, Any]:
    """One series for each domain and batch size, so that runs line up."""
    found: dict[str, Any] = {}
    for choice in results.choices:
        where = f"{choice.domain}/batch_{choice.batch_size}"
        found[f"{where}/draft_len"] = choice.k
        if choice.gain:
            found[f"{where}/speedup"] = choice.gain.value
    return found
