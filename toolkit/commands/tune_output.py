"""What `spectool tune` prints once its files are written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from toolkit.tuning.compare import Comparison
    from toolkit.tuning.results import Results


def say(
    results: Results,
    comparison: Comparison | None,
    files: Mapping[str, Path],
    as_json: bool,
    dialect: str | None,
) -> None:
    """After the files are written: whatever happens to the terminal, the results are safe."""
    from toolkit.tuning.dialect_table import in_dialect, print_dialect
    from toolkit.tuning.results import document
    from toolkit.tuning.table import diagnosis_lines, gate_lines, print_tables
    from toolkit.tuning.trace_table import print_trace_tables, tree_line

    outcome = results.outcome
    if outcome.resumed:
        typer.echo(f"{outcome.resumed} of {outcome.planned} rounds were measured before", err=True)
    if outcome.interrupted:
        typer.echo(
            f"stopped after {len(outcome.rounds)} of {outcome.planned} rounds; "
            "the same command goes on from here",
            err=True,
        )
    if "report.html" not in files:
        typer.echo("no report.html: it needs plotly (pip install 'spectool[report]')", err=True)
    if as_json:
        paths = {name: str(path) for name, path in files.items()}
        found = {**document(results, comparison, whole=False), "files": paths}
        if dialect is not None:
            found["as"] = in_dialect(dialect, results.cells)
        print(json.dumps(found, allow_nan=False))
        return
    if results.trace:
        print_trace_tables(results.trace, results.cells)
        if trees := results.trace.trees:
            print(f"{tree_line(trees)}\n")
    print_tables(results)
    if dialect is not None:
        print_dialect(dialect, results.cells)
    for line in diagnosis_lines(results.diagnoses):
        print(line)
    for trial in results.trials:
        print(trial)
    for finding in results.findings:
        print(f"{finding.level}: {finding.text}")
    print(results.verdict)
    for spelling in results.spellings:
        print(f"{spelling.server}: {spelling}")
    if comparison:
        print(f"\nagainst {comparison.old}:")
        for line in gate_lines(comparison):
            print(line)
    print("".join(f"\n{name:<13}{path}" for name, path in files.items()))
