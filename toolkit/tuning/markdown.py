"""summary.md: the verdict for a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toolkit.tuning.compare import Comparison
from toolkit.tuning.results import Results
from toolkit.tuning.table import milliseconds, number

_MARKS = {True: "pass", False: "**fail**"}


def summary_md(results: Results, comparison: Comparison | None = None) -> str:
    """GitHub-flavoured; pipes inside cells are escaped."""
    parts = [f"## {results.recipe.name}: speculative decoding", results.verdict]
    if comparison:
        parts += [f"### Against {comparison.old}", _gates(comparison)]
    parts.append(_table(("batch", "domain", "use", "speed-up", "accept. length", "TPOT p50 ms"),
                        map(list, _choices(results))))  # fmt: skip
    if results.spellings:
        lines = [[each.server, f"`{each}`"] for each in results.spellings]
        parts.append(_table(("server", "settings"), lines))
    if results.diagnoses:
        lines = [[d.symptom, d.cause, d.numbers, d.remedy] for d in results.diagnoses]
        parts.append(_table(("symptom", "cause", "numbers", "what to try"), lines))
    parts += [f"- {finding.level}: {finding.text}" for finding in results.findings]
    if not results.outcome.complete:
        done, planned = len(results.outcome.rounds), results.outcome.planned
        parts.append(f"From an unfinished run: {done} of {planned} rounds.")
    return "\n\n".join(parts) + "\n"


def _choices(results: Results) -> Iterable[Sequence[str]]:
    for choice in results.choices:
        gain, best = choice.gain, choice.best
        yield (
            str(choice.batch_size),
            choice.domain,
            f"k = {choice.k}" if choice.verdict == "on" else choice.verdict,
            f"{gain.value:.2f}x ({gain.low:.2f} to {gain.high:.2f})" if gain else "-",
            number(best.acceptance_length, "{:.2f}"),
            milliseconds(best.tpot_p50_ns),
        )


def _gates(comparison: Comparison) -> str:
    lines = [
        [gate.domain, str(gate.batch_size), gate.what, gate.before, gate.after, _MARKS[gate.passed]]
        for gate in comparison.gates
    ]
    return _table(("domain", "batch", "what", "before", "now", ""), lines)


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(map(_escaped, row))} |" for row in rows)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
