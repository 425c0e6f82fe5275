"""Does speculation change what an answer is worth? Valid JSON, and the right letter of four.

Both ask greedily. Texts that are equal are worth the same; where they part, the logits at the
first divergence tell a tie from a bug as in `equivalence`, and the scores of both sides show what
became of it. Beyond ties, too many answers that only plain decoding got right are a bug as well:
with no difference each side wins half of the answers that they disagree on (McNemar's exact test).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import comb
from pathlib import Path
from typing import Any

from toolkit.measure.equivalence import Divergence, divergences
from toolkit.measure.subject import Advance, Question, Subject, no_advance

_FOLDER = Path(__file__).parent / "task_sets"
_LETTERS = "ABCD"
_FENCE = re.compile(r"^```(?:json)?\s*\n(.*?)\n?```$", re.DOTALL)
_LETTER = re.compile(rf"\b([{_LETTERS}])\b")


@dataclass(frozen=True)
class Task:
    """A prompt whose answer can be scored."""

    id: str
    prompt: str
    right: Callable[[str], bool]


@dataclass(frozen=True)
class TaskReport:
    """Scores without and with speculation, over the same prompts."""

    name: str
    prompts: int
    plain: int  # right answers
    speculative: int
    lost: int  # right without speculation only
    won: int  # right with speculation only
    divergences: tuple[Divergence, ...]
    alpha: float

    @property
    def p_value(self) -> float:
        """Of losing at least so many of the answers that differ, when either side wins half."""
        n = self.lost + self.won
        return float(sum(comb(n, i) for i in range(self.lost, n + 1)) / 2**n)

    @property
    def bugs(self) -> list[Divergence]:
        return [d for d in self.divergences if d.verdict != "numerical tie"]

    @property
    def tested(self) -> bool:
        return self.prompts > 0

    @property
    def passed(self) -> bool:
        return self.tested and not self.bugs and self.p_value > self.alpha

    def conclusion(self) -> str:
        """One sentence for people."""
        scores = (
            f"{self.plain} of {self.prompts} right without speculation, {self.speculative} with it"
        )
        if self.bugs:
            return f"{scores}; {len(self.bugs)} answer(s) part where no rounding excuses it"
        if not self.passed:
            return f"{scores}; too many lost for chance (p = {self.p_value:.2g})"
        parted = f", {len(self.divergences)} part at numerical ties" if self.divergences else ""
        return f"{scores}{parted}"

    def to_json(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in ("prompts", "plain", "speculative")}
        return {
            **found,
            "lost": self.lost,
            "won": self.won,
            "p_value": self.p_value,
            "false_alarm_rate": self.alpha,
            "divergences": [{**asdict(d), "verdict": d.verdict} for d in self.divergences],
        }


def check_tasks(
    name: str,
    subject: Subject,
    tasks: Sequence[Task],
    questions: Sequence[Question],  # of the tasks, greedy
    *,
    alpha: float,
    advance: Advance = no_advance,
) -> TaskReport:
    """Answer all of them plainly and with speculation, and score both."""
    plain = subject.answer(questions, speculate=False, advance=advance)
    speculative = subject.answer(questions, speculate=True, advance=advance)
    pairs = [
        (task.right(off.text), task.right(on.text))
        for task, off, on in zip(tasks, plain, speculative, strict=True)
    ]
    return TaskReport(
        name=name,
        prompts=len(tasks),
        plain=sum(off for off, _ in pairs),
        speculative=sum(on for _, on in pairs),
        lost=sum(off and not on for off, on in pairs),
        won=sum(on and not off for off, on in pairs),
        divergences=divergences(subject, questions, plain, speculative),
        alpha=alpha,
    )


def json_tasks() -> list[Task]:
    """Prompts that ask for one JSON value."""
    return [Task(line["id"], line["prompt"], is_json) for line in _lines("json")]


def choice_tasks() -> list[Task]:
    """Questions of general knowledge with one right letter, equally often each of the four."""
    return [
        Task(line["id"], _choice_prompt(line), partial(_is_choice, line["answer"]))
        for line in _lines("choice")
    ]


def _is_choice(letter: str, text: str) -> bool:
    return chosen(text) == letter


def is_json(text: str) -> bool:
    """One JSON value and nothing else, a code fence around it forgiven."""
    text = text.strip()
    if fenced := _FENCE.match(text):
        text = fenced[1]
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def chosen(text: str) -> str | None:
    """The first letter that stands by itself."""
    found = _LETTER.search(text)
    return found[1] if found else None


def _choice_prompt(line: dict[str, Any]) -> str:
    choices = "\n".join(f"{x}. {c}" for x, c in zip(_LETTERS, line["choices"], strict=True))
    return f"{line['question']}\n{choices}\nAnswer with the letter, then say why in one sentence."


def _lines(name: str) -> list[dict[str, Any]]:
    text = (_FOLDER / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]
