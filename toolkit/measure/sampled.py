"""Does speculation keep the distribution at a temperature above 0? Samples of both, compared.

Plain decoding is sampled in two halves, before and after speculation. The halves are compared with
each other first: a server that changed in between, or whose answers depend on what else it serves,
must not be blamed on speculation. Then both halves together are compared with speculation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from toolkit.measure.subject import Advance, Answer, Counts, Question, Subject, no_advance
from toolkit.measure.two_sample import Group, TwoSample, compare
from toolkit.speculation.interfaces import SamplingParams


@dataclass(frozen=True)
class SampledReport:
    """Plain against plain, then plain against speculation."""

    name = "sampled"

    sampling: SamplingParams
    prompts: int
    samples: int  # of each prompt with speculation; plain decoding has twice as many
    length: int
    unit: str
    distinct: int  # different plain texts
    control: TwoSample
    compared: TwoSample
    counts: Counts | None  # None: the server does not tell
    lossy: str | None = None  # by choice, and what to say about it

    @property
    def varied(self) -> bool:
        """A server that ignores seeds gives one text again and again."""
        return self.distinct > self.prompts

    @property
    def tested(self) -> bool:
        return self.varied and (self.counts is None or self.counts.draft_tokens > 0)

    @property
    def passed(self) -> bool:
        same = not self.control.differ and not self.compared.differ
        return self.tested and same and self.lossy is None

    @property
    def lossy_by_choice(self) -> bool:
        """Whether it cannot pass for the recipe's own choice, and for nothing else."""
        return self.lossy is not None and self.tested and not self.control.differ

    def conclusion(self) -> str:
        """One sentence for people."""
        at = f"at temperature {self.sampling.temperature:g}"
        if not self.varied:
            return (
                f"all samples of a prompt are equal {at}, so nothing was tested: is the seed or "
                "the temperature ignored?"
            )
        if not self.tested:
            return f"nothing was drafted {at}, so nothing was tested; raise --sample-tokens"
        if self.control.differ:
            return (
                f"plain decoding {at} changed its distribution during the run "
                f"(p = {self.control.p_value:.2g}): something other than speculation moves"
            )
        if self.compared.differ:
            return (
                f"speculation changes the distribution {at} (p = {self.compared.p_value:.2g}, "
                f"false alarms {self.compared.alpha:.2g}): {self.lossy or 'this is a bug'}"
            )
        texts = " against ".join(map(str, self.compared.texts))
        found = f"no difference {at}: {texts} texts, p = {self.compared.p_value:.2g}"
        return f"{found}, too few to show it: {self.lossy}" if self.lossy else found

    def to_json(self) -> dict[str, Any]:
        return {
            "temperature": self.sampling.temperature,
            "top_k": self.sampling.top_k,
            "top_p": self.sampling.top_p,
            "prompts": self.prompts,
            "samples": self.samples,
            "length": self.length,
            "unit": self.unit,
            "lossy": self.lossy,
            "control": _described(self.control),
            "compared": _described(self.compared),
        }


def _described(found: TwoSample) -> dict[str, Any]:
    return {
        "differ": found.differ,
        "p_value": found.p_value,
        "p_values": dict(found.p_values),
        "false_alarm_rate": found.alpha,
        "texts": list(found.texts),
    }


def check_sampled(
    subject: Subject,
    questions: Sequence[Question],  # their sampling has a temperature; seeds are derived from it
    *,
    samples: int,
    alpha: float,  # of both comparisons together
    advance: Advance = no_advance,
    lossy: str | None = None,
) -> SampledReport:
    """Sample every question `samples` times plainly, with speculation, and plainly again.

    What is `lossy` by choice does not pass, whether so many samples show it or not.
    """

    def sample(side: str, speculate: bool) -> list[list[Answer]]:
        asked = [_seeded(q, side, number) for q in questions for number in range(samples)]
        answers = subject.answer(asked, speculate=speculate, advance=advance)
        return [answers[i : i + samples] for i in range(0, len(answers), samples)]

    before = sample("before", False)
    speculative = sample("speculative", True)
    after = sample("after", False)
    length = max(len(a.units) for answers in (*before, *after, *speculative) for a in answers)
    seed = questions[0].sampling.seed
    counts = [answer.counts for answers in speculative for answer in answers]
    plain = [[*one, *other] for one, other in zip(before, after, strict=True)]
    return SampledReport(
        sampling=questions[0].sampling,
        prompts=len(questions),
        samples=samples,
        length=length,
        unit=subject.unit,
        distinct=sum(len({answer.units for answer in answers}) for answers in plain),
        control=compare(_groups(before, after), length=length, alpha=alpha / 2, seed=seed),
        compared=compare(_groups(plain, speculative), length=length, alpha=alpha / 2, seed=seed),
        counts=sum((c for c in counts if c), Counts()) if any(counts) else None,
        lossy=lossy,
    )


def _groups(one: Sequence[Sequence[Answer]], other: Sequence[Sequence[Answer]]) -> list[Group]:
    return [
        Group([a.units for a in first], [a.units for a in second])
        for first, second in zip(one, other, strict=True)
    ]


def _seeded(question: Question, side: str, number: int) -> Question:
    """A seed of its own for each text: with shared seeds the texts would not be independent."""
    sampling = question.sampling
    name = f"{sampling.seed}/{question.domain}/{question.id}/{side}/{number}".encode()
    seed = int.from_bytes(blake2b(name, digest_size=8).digest(), "little") >> 1
    return replace(question, sampling=replace(sampling, seed=seed))
