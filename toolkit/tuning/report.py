"""report.html: verdict, plots and tables in one file that needs no network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from string import Template

from toolkit.optional import require
from toolkit.tuning.figures import figures
from toolkit.tuning.results import Results
from toolkit.tuning.table import COLUMNS, rows
from toolkit.tuning.trace_table import TRACE_COLUMNS, TREE_COLUMNS, trace_rows, tree_line, tree_rows

_STYLE = """
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif;
  color: #1b1b1b; background: #fff; max-width: 1180px; margin: 2rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; } h2 { font-size: 1.25rem; margin: 2.4rem 0 .3rem; }
p.note, footer { color: #555; margin: .2rem 0 .8rem; max-width: 62rem; }
p.verdict { font-size: 1.15rem; background: #eef4fa; border-left: 4px solid #0072B2;
  padding: .7rem 1rem; }
ul.findings { list-style: none; padding: 0; } ul.findings li { margin: .4rem 0;
  padding: .5rem 1rem; border-left: 4px solid #E69F00; background: #fdf7e9; }
ul.findings li.alarm { border-color: #c0392b; background: #fdeeec; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .22rem .7rem; text-align: right; border-bottom: 1px solid #e4e4e4; }
th { border-bottom: 2px solid #999; white-space: nowrap; }
tr.start td { border-top: 1px solid #999; }
td:first-child, th:first-child, td:last-child, th:last-child { text-align: left; }
tr.best td { background: #e9f5ef; font-weight: 600; } tr.off td:last-child { color: #a35200; }
table.choices td, table.choices th { text-align: left; }
pre { background: #f6f6f6; padding: .8rem; overflow-x: auto;
  white-space: pre-wrap; font-size: .8rem; }
@media print { body { margin: 0; max-width: none; font-size: 11px; }
  section, tr { break-inside: avoid; } .modebar { display: none; }
  pre { font-size: 8px; } }
"""

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>$style</style>
<script>$script</script>
</head>
<body>
<h1>$title</h1>
<p class="note">$subtitle</p>
<p class="verdict">$verdict</p>
$findings
$choices
$deploy
$diagnosis
$plots
$tables
$settings
</body>
</html>
""")


def report_html(results: Results) -> str:
    """The whole page."""
    offline = require("plotly.offline", extra="report", why="report.html")
    return _PAGE.substitute(
        title=escape(f"{results.recipe.name}: speculative decoding, measured"),
        subtitle=escape(_subtitle(results)),
        verdict=escape(results.verdict),
        findings=_findings(results),
        choices=_choices(results),
        deploy=_deploy(results),
        diagnosis=_diagnosis(results),
        plots="\n".join(_plots(results)),
        tables="\n".join(_tables(results)),
        settings=_settings(results),
        style=_STYLE,
        script=offline.get_plotlyjs(),
    )


def _subtitle(results: Results) -> str:
    tune, outcome = results.recipe.tune, results.outcome
    drafter = results.recipe.speculation.drafter
    done = f"{len(outcome.rounds)} of {outcome.planned} rounds" if outcome.planned else "nothing"
    sampling = tune.sampling
    drawn = "greedy" if sampling.temperature == 0 else f"temperature {sampling.temperature:g}"
    return (
        f"Drafter {drafter}; {drawn}; {tune.max_tokens} output tokens a request; {done} measured, "
        f"{len(results.records)} requests; {results.versions.get('time', '')}"
    )


def _findings(results: Results) -> str:
    items = "".join(
        f'<li class="{finding.level}"><b>{finding.level}</b>: {escape(finding.text)}</li>'
        for finding in results.findings
    )
    return f'<ul class="findings">{items}</ul>' if items else ""


def _choices(results: Results) -> str:
    lines = [
        (
            str(choice.batch_size),
            choice.domain,
            f"k = {choice.k}" if choice.verdict == "on" else choice.verdict,
            choice.reason,
        )
        for choice in results.choices
    ]
    table = _table(("batch", "domain", "use", "because"), lines, "choices")
    return f"<section><h2>What to use</h2>{table}</section>"


def _deploy(results: Results) -> str:
    lines = [
        (each.server, ", ".join(f"{k}: {v}" for k, v in each.settings.items()), each.note)
        for each in results.spellings
    ]
    lines += [
        (f"{plan.name} ({plan.objective})", str(list(map(list, plan.schedule))), "draft lengths "
         "from each batch size on, 0: off")
        for plan in results.plans
    ]  # fmt: skip
    if not lines:
        return ""
    table = _table(("server", "settings", "note"), lines, "choices")
    return f"<section><h2>How to deploy it</h2>{table}</section>"


def _diagnosis(results: Results) -> str:
    lines = [(d.symptom, d.cause, d.numbers, d.remedy) for d in results.diagnoses]
    if not lines:
        return ""
    table = _table(("symptom", "cause", "numbers", "what to try"), lines, "choices")
    return f"<section><h2>Why it is not faster</h2>{table}</section>"


def _plots(results: Results) -> Iterable[str]:
    io = require("plotly.io", extra="report", why="report.html")
    for place, (title, note, figure) in enumerate(figures(results)):
        plot = io.to_html(
            figure,
            full_html=False,
            include_plotlyjs=False,
            div_id=f"plot-{place}",
            config={"displaylogo": False, "responsive": True},
        )
        yield (
            f'<section><h2>{escape(title)}</h2><p class="note">{escape(note)}</p>{plot}</section>'
        )


def _tables(results: Results) -> Iterable[str]:
    for batch in sorted({cell.batch_size for cell in results.cells}):
        cells = [cell for cell in results.cells if cell.batch_size == batch]
        choices = [choice for choice in results.choices if choice.batch_size == batch]
        table = _table(COLUMNS, rows(cells, choices), "numbers")
        yield f"<section><h2>All numbers, batch size {batch}</h2>{table}</section>"
        if results.trace:
            lines = trace_rows(results.trace, results.cells, batch)
            table = _table(TRACE_COLUMNS, lines, "numbers")
            yield (
                f"<section><h2>Predicted from the trace, batch size {batch}</h2>"
                '<p class="note">Over all prompts; the last three columns compare TPOT in ms over '
                f"the confirming rounds alone.</p>{table}</section>"
            )
    if results.trace and (trees := results.trace.trees):
        yield (
            "<section><h2>Trees</h2>"
            '<p class="note">The best tree of each size, on the traced texts and on others: there, '
            "each half of the texts is decoded with the tree that the other half chose.</p>"
            f"{_table(TREE_COLUMNS, tree_rows(trees), 'numbers')}"
            f"<pre>{escape(tree_line(trees))}</pre></section>"
        )


def _table(head: Sequence[str], lines: Iterable[Sequence[str]], kind: str) -> str:
    titles = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(_line(line) for line in lines)
    return f'<table class="{kind}"><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>'


def _line(line: Sequence[str]) -> str:
    kinds = [line[-1]] if line[-1] in ("best", "off", "undecided") else []
    kinds += ["start"] if line[0] else []
    cells = "".join(f"<td>{escape(value)}</td>" for value in line)
    return f'<tr class="{" ".join(kinds)}">{cells}</tr>'


def _settings(results: Results) -> str:
    text = json.dumps(
        {
            "settings": dict(results.settings),
            "versions": dict(results.versions),
            "recipe": results.recipe.model_dump(mode="json"),
        },
        indent=2,
        ensure_ascii=False,
    )
    return (
        "<section><h2>Definitions and settings</h2>"
        '<p class="note">acceptance rate = accepted / drafted tokens. acceptance length = tokens '
        "per verify step, the bonus or recovered token included, the prefill token not. TPOT = "
        "(latency - TTFT) / (output tokens - 1), per request. tokens/s = all output tokens of the "
        "batch / wall time, prefill included. speed-up = TPOT plain / TPOT speculative of the same "
        "prompt in the same round.</p>"
        f"<pre>{escape(text)}</pre></section>"
    )
