"""Is greedy text with speculation the text without it? First divergences, and what each one means.

A verify step feeds several tokens where plain decoding feeds one, so an engine may sum in another
order and round differently. Where two tokens were equally good up to that rounding, either text is
right; from there on they part. So every first divergence is asked: in one more forward pass over
the common text, how far does the worse of the two tokens lie below the best one? Within the
dtype's rounding it is a numerical tie, beyond it a bug.

Plain decoding runs before and after speculation. An engine that does not agree with itself cannot
be tested, and a server that changed during the run would otherwise be blamed on speculation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Literal

from toolkit.measure.subject import Advance, Answer, Counts, Question, Subject, no_advance

Verdict = Literal["numerical tie", "bug", "unexplained"]
ENOUGH_DRAFTS = 50  # with fewer, accepting little may be chance


@dataclass(frozen=True)
class Divergence:
    """The first token at which two texts of one prompt part."""

    domain: str
    prompt: str
    position: int  # of the output
    plain_token: Hashable | None  # None: this text had ended
    other_token: Hashable | None
    gap: float | None  # the best logit minus the worse of the two tokens; None without both
    bound: float | None  # a gap up to here is rounding; None: nobody could be asked

    @property
    def verdict(self) -> Verdict:
        if self.gap is None or self.bound is None:
            # A text that ends early has no second token that rounding could excuse.
            return "bug" if None in (self.plain_token, self.other_token) else "unexplained"
        return "bug" if self.gap > self.bound else "numerical tie"


@dataclass(frozen=True)
class DomainCount:
    """What was compared in one domain; counts, so that domains add."""

    domain: str
    prompts: int
    tokens: int
    identical: int  # prompts whose two texts are one
    draft_tokens: int
    accepted_tokens: int
    verify_steps: int


@dataclass(frozen=True)
class EquivalenceReport:
    """Plain against plain, then plain against speculation."""

    name = "greedy"

    rounding: str
    unit: str
    control: tuple[Divergence, ...]
    divergences: tuple[Divergence, ...]
    domains: tuple[DomainCount, ...]
    counts: Counts | None  # None: the server does not tell
    commonest: float  # share of the most common unit of the plain texts

    @property
    def bugs(self) -> list[Divergence]:
        return [d for d in (*self.control, *self.divergences) if d.verdict != "numerical tie"]

    @property
    def tested(self) -> bool:
        """Something was drafted; otherwise both runs were plain decoding."""
        return self.counts is None or self.counts.draft_tokens > 0

    @property
    def uninformed(self) -> bool:
        """Are the drafts no better than none?

        A drafter that always says the most common token is right as often as that token comes. One
        that looks at the text and is right less than half as often is broken: untrained weights,
        another vocabulary, a vocabulary map that is ignored.
        """
        if self.counts is None:
            return False
        if not self.counts.first_drafts:  # a server that tells sums only
            return self.counts.draft_tokens >= ENOUGH_DRAFTS and not self.counts.accepted_tokens
        first = self.counts.first_accepted / self.counts.first_drafts
        return self.counts.first_drafts >= ENOUGH_DRAFTS and first < self.commonest / 2

    @property
    def passed(self) -> bool:
        return self.tested and not self.bugs and not self.uninformed

    def conclusion(self) -> str:
        """One sentence for people."""
        if any(d.verdict != "numerical tie" for d in self.control):
            return (
                "plain decoding does not reproduce itself before and after speculation: fix the "
                "engine, or what changed during the run, before speculation"
            )
        if any(d.verdict == "bug" for d in self.divergences):
            return f"speculation changes the text of {len(self.bugs)} prompt(s): this is a bug"
        if self.bugs:
            return (
                f"speculation changes the text of {len(self.bugs)} prompt(s), and nothing tells a "
                "numerical tie from a bug here"
            )
        if not self.tested:
            return (
                "nothing was drafted, so nothing was tested; raise --max-tokens or --prompts, or "
                "name a draft length with --k"
            )
        if self.uninformed:
            return (
                f"lossless, but the drafts are worthless: {self._worth()}; suspect the drafter's "
                "weights, vocabulary or vocabulary map"
            )
        prompts = sum(domain.prompts for domain in self.domains)
        if not self.divergences:
            return f"greedy text with speculation equals plain text on all {prompts} prompts"
        return (
            f"lossless up to rounding: {prompts - len(self.divergences)} of {prompts} texts are "
            f"equal, the others part at numerical ties of {self.rounding}"
        )

    def _worth(self) -> str:
        assert self.counts
        if not self.counts.first_drafts:
            return f"none of {self.counts.draft_tokens} draft tokens stood"
        return (
            f"of {self.counts.first_drafts} drafts the first token stood "
            f"{self.counts.first_accepted} times, where always drafting the most common token "
            f"would have stood {self.commonest:.1%} of the time"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "rounding": self.rounding,
            "unit": self.unit,
            "control": _described(self.control),
            "divergences": _described(self.divergences),
            "domains": [asdict(domain) for domain in self.domains],
        }


def _described(found: Sequence[Divergence]) -> list[dict[str, Any]]:
    return [{**asdict(d), "verdict": d.verdict} for d in found]


def check_equivalence(
    subject: Subject,
    questions: Sequence[Question],  # greedy; those of one domain together
    *,
    advance: Advance = no_advance,
) -> EquivalenceReport:
    """Answer every question plainly, with speculation, and plainly again."""
    plain = subject.answer(questions, speculate=False, advance=advance)
    speculative = subject.answer(questions, speculate=True, advance=advance)
    again = subject.answer(questions, speculate=False, advance=advance)
    units = Counter(unit for answer in plain for unit in answer.units)
    counts = [answer.counts for answer in speculative]
    return EquivalenceReport(
        rounding=subject.rounding,
        unit=subject.unit,
        control=divergences(subject, questions, plain, again),
        divergences=divergences(subject, questions, plain, speculative),
        domains=tuple(_count(questions, plain, speculative)),
        counts=sum((c for c in counts if c), Counts()) if any(counts) else None,
        commonest=max(units.values()) / units.total() if units else 0.0,
    )


def divergences(
    subject: Subject,
    questions: Sequence[Question],
    plain: Sequence[Answer],
    other: Sequence[Answer],
) -> tuple[Divergence, ...]:
    """Where texts part, in the questions' order."""
    triples = zip(questions, plain, other, strict=True)
    found = (_first_divergence(subject, *triple) for triple in triples)
    return tuple(divergence for divergence in found if divergence)


def _count(
    questions: Sequence[Question], plain: Sequence[Answer], speculative: Sequence[Answer]
) -> Iterator[DomainCount]:
    rows = zip(questions, plain, speculative, strict=True)
    for domain, found in groupby(rows, key=lambda row: row[0].domain):
        pairs = [(off, on) for _, off, on in found]
        counts = sum((on.counts for _, on in pairs if on.counts), Counts())
        yield DomainCount(
            domain=domain,
            prompts=len(pairs),
            tokens=sum(len(off.units) for off, _ in pairs),
            identical=sum(off.units == on.units for off, on in pairs),
            draft_tokens=counts.draft_tokens,
            accepted_tokens=counts.accepted_tokens,
            verify_steps=counts.verify_steps,
        )


def _first_divergence(
    subject: Subject, question: Question, plain: Answer, other: Answer
) -> Divergence | None:
    """Where two texts part, with the logits of a third computation as the judge."""
    if plain.units == other.units:
        return None
    longest = max(len(plain.units), len(other.units))
    ours, theirs = ([*a.units, *[None] * (longest - len(a.units))] for a in (plain, other))
    at = next(i for i in range(longest) if ours[i] != theirs[i])
    one, two = ours[at], theirs[at]
    gap = subject.gap(question, plain.units[:at], (one, two))
    return Divergence(
        question.domain,
        question.id,
        at,
        one,
        two,
        gap.value if gap else None,
        gap.bound if gap else None,
    )
