"""The files of a run: results.json (everything), records.csv (a line per request)."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from toolkit.measure import metrics
from toolkit.measure.prompts import ALL_DOMAINS
from toolkit.measure.records import COLUMNS, RequestRecord, csv_row
from toolkit.recipe.schema import Recipe
from toolkit.tuning.adaptive import Challenger, Trial, settled_on
from toolkit.tuning.between import Promise, promises
from toolkit.tuning.choose import Choice, choose, overall, schedule, verdict
from toolkit.tuning.compare import SCHEMA, Comparison
from toolkit.tuning.corrected import corrected
from toolkit.tuning.diagnosis import Diagnosis, Symptoms, diagnose
from toolkit.tuning.findings import Evidence, Finding, find, lossy_output
from toolkit.tuning.grid import Grid
from toolkit.tuning.objective import gpus_of
from toolkit.tuning.plans import Plan, plans, words
from toolkit.tuning.plans import document as plans_document
from toolkit.tuning.session import Outcome
from toolkit.tuning.spellings import Spelling, spellings
from toolkit.tuning.spellings import document as spellings_document
from toolkit.tuning.summary import Cell, summarise
from toolkit.tuning.trace_findings import trace_findings
from toolkit.tuning.trace_mode import TraceReport
from toolkit.tuning.words import in_words

NOTHING: Mapping[str, str | None] = MappingProxyType({})


@dataclass(frozen=True)
class Results:
    """Everything that table, report and files are made from."""

    recipe: Recipe  # as it was tuned: command-line options are in its tune section
    outcome: Outcome
    settings: Mapping[str, Any]
    versions: Mapping[str, Any]
    cells: Sequence[Cell]
    judged: Sequence[Cell]  # as the verdict sees them: a trace knows gains over all prompts
    choices: Sequence[Choice]
    findings: Sequence[Finding]
    diagnoses: Sequence[Diagnosis] = ()
    trace: TraceReport | None = None  # --mode trace: what was predicted
    promises: Sequence[Promise] = ()  # of lengths that nobody looked at; a trace looks at all

    @property
    def records(self) -> list[RequestRecord]:
        runs = (run for runs in self.outcome.rounds.values() for run in runs)
        return [record for run in runs for record in run.requests]

    @property
    def verdict(self) -> str:
        """Draft lengths and gains, up to where it pays and why, and a plan for day and night."""
        basis = (
            f"These gains were predicted over all {len(self.trace.traced.texts)} prompts and "
            "corrected by the rounds that were measured."
            if self.trace and self.judged != self.cells
            else ""
        )
        won = [f"More than a fixed length gains: {t}." for t in self.trials if t.won]
        worth = [f"Worth a try: {promise}." for promise in self.promises]
        said = [verdict(self.choices), basis, in_words(self.cells, self.choices), words(self.plans)]
        return " ".join(filter(None, [*said, *won, *worth]))

    @property
    def trials(self) -> Sequence[Trial]:
        return self.trace.trials if self.trace else ()

    @property
    def challenger(self) -> Challenger | None:
        """Instead of a fixed length: where one length pays everywhere and this beat it."""
        steps = self.schedule
        if self.recipe.backend != "cpu" or not steps or len(steps) > 1 or not steps[0][1]:
            return None  # TensorRT-LLM has one length for a whole batch
        return settled_on(self.trials, [c.batch_size for c in overall(self.choices)])

    @property
    def plans(self) -> list[Plan]:
        return plans(self.judged, self.recipe.tune.objective)

    @property
    def spellings(self) -> list[Spelling]:
        return spellings(self.recipe, self.schedule)

    @property
    def schedule(self) -> list[tuple[int, int]] | None:
        return schedule(self.choices)

    def acceptance_by_position(
        self, domain: str, k: int
    ) -> tuple[list[float | None], list[float | None]]:
        """[k] joint and [k] conditional, over all batch sizes."""
        records = [r for r in self.records if r.k == k and domain in (r.domain, ALL_DOMAINS)]
        joint = metrics.joint_acceptance_by_position(records, k)
        conditional = metrics.conditional_acceptance_by_position(records, k)
        return [_or_none(v) for v in joint], [_or_none(v) for v in conditional]


def evaluate(
    recipe: Recipe, grid: Grid, outcome: Outcome, settings: Mapping[str, Any],
    versions: Mapping[str, Any], trace: TraceReport | None = None,
    templates: Mapping[str, str | None] = NOTHING,
) -> Results:  # fmt: skip
    """Summarise, choose, and look for what could fool the reader."""
    cells = summarise(
        outcome.rounds,
        ks=grid.ks,
        batches=grid.batches,
        domains=list(grid.domains),
        objective=recipe.tune.objective,
        gpus=gpus_of(recipe),
        seed=grid.seed,
    )
    expected = {(c.batch_size, c.domain): c.hope.k for c in trace.choices} if trace else {}
    judged = _judged(cells, recipe, grid, outcome, trace) if trace else cells
    choices = choose(judged, recipe.tune.objective, expected)
    results = Results(recipe, outcome, settings, versions, cells, judged, choices, (), trace=trace)
    found = [*lossy_output(recipe), *find(Evidence(cells, results.records, grid))]
    if trace:
        found += trace_findings(trace, cells, choices)
    found.sort(key=lambda finding: finding.level)
    times = trace.times if trace else None
    seen = diagnose(Symptoms(cells, results.records, times, templates))
    worth = (
        []
        if trace
        else promises(grid, outcome.rounds, cells, recipe.tune.max_tokens, recipe.tune.objective)
    )
    return replace(results, findings=found, diagnoses=seen, promises=worth)


def _judged(
    cells: Sequence[Cell], recipe: Recipe, grid: Grid, outcome: Outcome, trace: TraceReport
) -> list[Cell]:
    rounds, objective = grid.rounds(), recipe.tune.objective
    return corrected(
        cells, trace.predicted, trace.predictor, rounds, outcome.rounds, objective, grid.seed
    )


def document(
    results: Results, comparison: Comparison | None = None, *, whole: bool
) -> dict[str, Any]:
    """The JSON document; `whole` adds the record of every request and the totals of every run."""
    outcome = results.outcome
    found = {
        "schema": SCHEMA,
        "verdict": results.verdict,
        "draft_length_schedule": results.schedule,
        "plans": plans_document(results.plans),
        "deploy": spellings_document(results.spellings),
        "complete": outcome.complete,
        "rounds": {
            "planned": outcome.planned,
            "measured": len(outcome.rounds),
            "resumed": outcome.resumed,
        },
        "choices": [_choice(choice) for choice in results.choices],
        "promises": [asdict(promise) for promise in results.promises],
        "findings": [asdict(finding) for finding in results.findings],
        "diagnosis": [asdict(diagnosis) for diagnosis in results.diagnoses],
        "summary": [asdict(cell) for cell in results.cells],
        "recipe": results.recipe.model_dump(mode="json"),
        "settings": dict(results.settings),
        "versions": dict(results.versions),
    }
    if outcome.timeline:
        found["timeline"] = [asdict(slot) for slot in outcome.timeline]
    if results.trace:
        found["trace"] = results.trace.document(results.cells)
    if comparison:
        found["comparison"] = comparison.to_json()
    if whole:
        runs = [run for runs in outcome.rounds.values() for run in runs]
        found["runs"] = [
            {name: value for name, value in run.to_json().items() if name != "requests"}
            for run in runs
        ]
        found["records"] = [asdict(record) for record in results.records]
    return found


def to_json(results: Results, comparison: Comparison | None = None) -> str:
    return json.dumps(document(results, comparison, whole=True), allow_nan=False) + "\n"


def to_csv(results: Results) -> str:
    """One line per request; list columns hold numbers with spaces between them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(map(csv_row, results.records))
    return text.getvalue()


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "batch_size": choice.batch_size,
        "domain": choice.domain,
        "verdict": choice.verdict,
        "k": choice.k,
        "best_k": choice.best.k,
        "speedup": asdict(choice.best.speedup) if choice.best.speedup else None,
        "reason": choice.reason,
    }
