"""Why it is slow: from symptoms to causes, each with the numbers that support it and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from toolkit.measure import metrics
from toolkit.measure.metrics import loops, ratio
from toolkit.measure.records import RequestRecord
from toolkit.measure.step_times import StepTimes
from toolkit.tuning.summary import Cell
from toolkit.tuning.words import COSTLY, step_cost

LOW = 0.5  # of the drafts at a position
EARLY = 4  # verify steps of a request that count as the answer's beginning
MUCH_WORSE = 0.6  # acceptance early in the answer, of that later
DEAR = 0.4  # of a step's time goes to drafting
SELDOM = 0.5  # of the steps have nothing to verify
ENOUGH = 30  # drafts or steps below which a share says nothing


@dataclass(frozen=True)
class Diagnosis:
    """One line of the table."""

    symptom: str
    cause: str
    numbers: str
    remedy: str


@dataclass(frozen=True)
class Symptoms:
    """Everything the checks look at."""

    cells: Sequence[Cell]
    records: Sequence[RequestRecord]
    times: StepTimes | None = None  # --mode trace measured them
    templates: Mapping[str, str | None] = field(default_factory=dict)  # role -> chat template

    def of(self, domain: str) -> list[RequestRecord]:
        return [r for r in self.records if r.domain == domain and r.k]

    @property
    def domains(self) -> list[str]:
        return list(dict.fromkeys(record.domain for record in self.records))

    @property
    def longest(self) -> int:
        return max((record.k for record in self.records), default=0)


def diagnose(symptoms: Symptoms) -> list[Diagnosis]:
    """Everything that was seen; the most telling first."""
    return [found for check in CHECKS for found in check(symptoms)]


def nothing_accepted(symptoms: Symptoms) -> Iterator[Diagnosis]:
    for domain in symptoms.domains:
        records = symptoms.of(domain)
        drafted = sum(r.draft_tokens for r in records)
        if drafted >= ENOUGH and not any(r.accepted_tokens for r in records):
            yield Diagnosis(
                f"{domain}: acceptance_length is exactly 1.00",
                "a broken head, another vocabulary or wrong weights",
                f"0 of {drafted} draft tokens accepted",
                "spectool check RECIPE; compare the head's target, d2t and tokenizer with the "
                "target's",
            )


def low_acceptance(symptoms: Symptoms) -> Iterator[Diagnosis]:
    """The position from which a draft is more often refused than accepted."""
    for domain in symptoms.domains:
        records = [r for r in symptoms.of(domain) if r.k == symptoms.longest]
        if not any(r.accepted_tokens for r in records):
            continue  # said above
        shares = metrics.conditional_acceptance_by_position(records, symptoms.longest)
        steps = [n for r in records for n in r.accepted_per_step]
        bad = next(
            (j for j, s in enumerate(shares) if s < LOW and sum(n >= j for n in steps) >= ENOUGH),
            None,
        )
        if bad is None:
            continue
        shown = ", ".join(f"{share:.0%}" for share in shares[: bad + 1])
        if bad == 0:
            yield Diagnosis(
                f"{domain}: the first draft token is refused more often than not",
                "the drafter does not know this domain",
                f"accepted by position, given all before: {shown}",
                "another draft (spectool select), one distilled on this domain, or off here",
            )
        else:
            yield Diagnosis(
                f"{domain}: acceptance falls at position {bad + 1}",
                f"drafts longer than {bad} are mostly thrown away",
                f"accepted by position, given all before: {shown}",
                f"k = {bad}, or draft_length.policy: adaptive",
            )


def nothing_drafted(symptoms: Symptoms) -> Iterator[Diagnosis]:
    for domain in symptoms.domains:
        steps = [n for record in symptoms.of(domain) for n in record.drafted_per_step]
        empty = sum(n == 0 for n in steps)
        if len(steps) >= ENOUGH and empty > SELDOM * len(steps):
            yield Diagnosis(
                f"{domain}: most steps verify nothing",
                "lookup finds no earlier copy: the answer repeats neither prompt nor itself",
                f"{empty} of {len(steps)} steps had no draft",
                "a draft model or head for this domain; lookup costs little where it finds nothing",
            )


def drafting_is_dear(symptoms: Symptoms) -> Iterator[Diagnosis]:
    if symptoms.times is None:
        return
    k = symptoms.longest
    shares = {
        batch: symptoms.times.draft_share(batch, k, _context(symptoms, batch))
        for batch in sorted({point.batch_size for point in symptoms.times.points})
    }
    dear = {batch: share for batch, share in shares.items() if share > DEAR}
    if dear:
        yield Diagnosis(
            "a step is slow though acceptance is fair",
            "the draft is too expensive for its target",
            f"at k = {k} drafting takes "
            + ", ".join(f"{share:.0%} of a step at batch {b}" for b, share in dear.items()),
            "a smaller draft, int8 weights (draft.quantization: w8a16), or a shorter k",
        )


def _context(symptoms: Symptoms, batch: int) -> float:
    lengths = [
        r.prompt_tokens + r.output_tokens / 2 for r in symptoms.records if r.batch_size == batch
    ]
    return ratio(sum(lengths), len(lengths)) if lengths else 0.0


def compute_bound(symptoms: Symptoms) -> Iterator[Diagnosis]:
    """Verifying k + 1 tokens is nearly free only while the target waits for memory."""
    pooled = [c for c in symptoms.cells if c.pooled and c.k == symptoms.longest]
    costs = {
        cell.batch_size: cost
        for cell in pooled
        if (cost := step_cost(symptoms.cells, cell)) is not None
    }
    dear = {batch: cost for batch, cost in costs.items() if cost > COSTLY}
    if dear:
        yield Diagnosis(
            "gains shrink as the batch grows" if len(costs) > len(dear) else "gains are small",
            "verification is compute-bound",
            f"a step of k = {symptoms.longest} takes "
            + ", ".join(f"{cost:.2f}x a plain step at batch {b}" for b, cost in costs.items()),
            "a schedule: shorter drafts as the batch grows, then off",
        )


def degenerate(symptoms: Symptoms) -> Iterator[Diagnosis]:
    for domain in symptoms.domains:
        records = [record for record in symptoms.records if record.domain == domain]
        if count := sum(map(loops, records)):
            yield Diagnosis(
                f"{domain}: acceptance is suspiciously high",
                "degenerate loops: the output repeats itself",
                f"{count} of {len(records)} outputs have too few distinct bigrams",
                "other prompts or sampling; a base model given chat prompts does this",
            )


def templates(symptoms: Symptoms) -> Iterator[Diagnosis]:
    """A chat template that the draft lacks, or an answer whose beginning it does not follow."""
    target = symptoms.templates.get("target")
    for role, template in symptoms.templates.items():
        if role == "target" or template == target:
            continue
        early, later = _early_and_later(symptoms)
        cause = (
            "the draft is a base model, the target an instruct one"
            if template is None
            else "the draft was trained on another chat template"
        )
        if target is None:
            cause = "the draft is an instruct model, the target a base one"
        yield Diagnosis(
            f"{role}: its chat template is not the target's",
            cause,
            f"{early:.0%} of the drafts accepted in the first {EARLY} steps of an answer, "
            f"{later:.0%} later",
            "a draft of the same post-training, or one distilled on this target's answers",
        )


def slow_beginning(symptoms: Symptoms) -> Iterator[Diagnosis]:
    """Template trouble shows where the answer begins, whatever the files say."""
    early, later = _early_and_later(symptoms)
    if early < MUCH_WORSE * later and later > 0:
        yield Diagnosis(
            "answers begin with refused drafts",
            "template mismatch: the draft does not know how an answer starts",
            f"{early:.0%} of the drafts accepted in the first {EARLY} steps of an answer, "
            f"{later:.0%} later",
            "the draft's own chat template and post-training; lookup has this by nature",
        )


def _early_and_later(symptoms: Symptoms) -> tuple[float, float]:
    """Accepted over drafted at the beginning of answers, and after it; nan: too few drafts."""

    def share(part: slice) -> float:
        records = [record for record in symptoms.records if record.k]
        drafted = sum(sum(record.drafted_per_step[part]) for record in records)
        accepted = sum(sum(record.accepted_per_step[part]) for record in records)
        return ratio(accepted, drafted if drafted >= ENOUGH else 0)

    return share(slice(EARLY)), share(slice(EARLY, None))


CHECKS: tuple[Callable[[Symptoms], Iterator[Diagnosis]], ...] = (
    nothing_accepted,
    templates,
    low_acceptance,
    nothing_drafted,
    drafting_is_dear,
    compute_bound,
    slow_beginning,
    degenerate,
)
