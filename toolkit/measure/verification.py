"""All that `verify` checks of one subject, and the verdict over it.

The statistical checks share one false-alarm rate (Bonferroni): of so many runs on a lossless
deployment that share fails by chance. Greedy texts and ties are judged without chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from toolkit.measure.equivalence import check_equivalence
from toolkit.measure.sampled import SampledReport, check_sampled
from toolkit.measure.subject import Advance, Question, Subject
from toolkit.measure.tasks import Task, check_tasks

SCHEMA = "spectool.verify/1"
CHECKS = {
    "greedy": "greedy texts are equal up to numerical ties",
    "sampled": "sampled texts have one distribution",
    "json": "as much valid JSON",
    "choice": "as many right answers to multiple-choice questions",
}


class Check(Protocol):
    """What one check found."""

    @property
    def name(self) -> str: ...

    @property
    def passed(self) -> bool: ...

    @property
    def tested(self) -> bool: ...

    def conclusion(self) -> str: ...

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is asked; an empty part is not checked."""

    greedy: Sequence[Question] = ()
    sampled: Sequence[Question] = ()
    json: Sequence[tuple[Task, Question]] = ()
    choice: Sequence[tuple[Task, Question]] = ()
    samples: int = 64
    alpha: float = 0.001

    @property
    def answers(self) -> int:
        """How many texts are generated in all."""
        once = len(self.greedy) + len(self.sampled) * self.samples
        return 3 * once + 2 * (len(self.json) + len(self.choice))


@dataclass(frozen=True)
class Verification:
    """What every check found."""

    checks: tuple[Check, ...]
    alpha: float
    lossy: str | None = None  # by choice of the recipe, and what to say about it

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def conclusion(self) -> str:
        """One sentence for people: the first thing that is wrong, else that nothing is."""
        wrong = [check for check in self.checks if not check.passed]
        if not wrong:
            names = ", ".join(check.name for check in self.checks)
            passed = f"{names} passed (false-alarm rate {self.alpha:g})"
            return f"{passed}; when sampling, {self.lossy}" if self.lossy else f"lossless: {passed}"
        first = wrong[0]
        if isinstance(first, SampledReport) and first.lossy_by_choice:
            return f"lossy by choice: {first.conclusion()}"
        return f"failed: {first.name}: {first.conclusion()}"

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "passed": self.passed,
            "lossy": self.lossy,
            "conclusion": self.conclusion(),
            "false_alarm_rate": self.alpha,
            "checks": {
                check.name: {
                    "passed": check.passed,
                    "tested": check.tested,
                    "conclusion": check.conclusion(),
                    **check.to_json(),
                }
                for check in self.checks
            },
        }


def run(
    subject: Subject,
    plan: Plan,
    *,
    advance: Advance,
    starting: Callable[[str], None] = lambda name: None,
    lossy: str | None = None,
) -> Verification:
    """Every check that the plan has questions for, in the order of `CHECKS`.

    `lossy`: the recipe chose not to keep the target's distribution, so `sampled` cannot pass.
    """
    chance = sum(bool(part) for part in (plan.sampled, plan.json, plan.choice))
    alpha = plan.alpha / max(chance, 1)
    found: list[Check] = []
    if plan.greedy:
        starting("greedy")
        found.append(check_equivalence(subject, plan.greedy, advance=advance))
    if plan.sampled:
        starting("sampled")
        found.append(
            check_sampled(
                subject,
                plan.sampled,
                samples=plan.samples,
                alpha=alpha,
                advance=advance,
                lossy=lossy,
            )
        )
    for name, pairs in (("json", plan.json), ("choice", plan.choice)):
        if pairs:
            starting(name)
            tasks, questions = zip(*pairs, strict=True)
            found.append(check_tasks(name, subject, tasks, questions, alpha=alpha, advance=advance))
    return Verification(tuple(found), plan.alpha, lossy)
