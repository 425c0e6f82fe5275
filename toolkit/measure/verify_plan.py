"""Which questions `verify` asks, from prompt sets and the bundled tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest

from toolkit.errors import InputError, did_you_mean
from toolkit.measure.prompts import Prompt, PromptSet
from toolkit.measure.random_prompts import refuse_random
from toolkit.measure.subject import Question
from toolkit.measure.tasks import Task, choice_tasks, json_tasks
from toolkit.measure.verification import CHECKS, Plan
from toolkit.recipe.schema import Sampling
from toolkit.speculation.interfaces import SamplingParams

Encode = Callable[[str, Prompt], tuple[int, ...]]  # (domain, prompt) -> tokens; none for a server
_TASKS = {"json": (json_tasks, 96), "choice": (choice_tasks, 24)}  # and how long an answer may be


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """The options of the command that say what to ask."""

    checks: Sequence[str]
    prompts: int  # of every domain
    max_tokens: int
    samples: int
    sample_prompts: int
    sample_tokens: int
    temperature: float | None  # None, here and below: as the recipe says
    top_k: int | None
    top_p: float | None
    seed: int  # the base of all seeds
    alpha: float

    def sampling(self, recipe: Sampling) -> SamplingParams:
        """Of the sampled check; where the recipe is greedy, at temperature 1."""
        return SamplingParams(
            self.temperature or recipe.temperature or 1.0,
            recipe.top_k if self.top_k is None else self.top_k,
            recipe.top_p if self.top_p is None else self.top_p,
            self.seed,
        )


@dataclass(frozen=True)
class Room:
    """The longest prompts that fit, in tokens; None: nobody knows."""

    max_input_len: int | None = None
    max_seq_len: int | None = None

    def fits(self, question: Question) -> bool:
        length = len(question.tokens)
        whole = length + question.max_tokens
        return (self.max_input_len is None or length <= self.max_input_len) and (
            self.max_seq_len is None or whole <= self.max_seq_len
        )

    def __str__(self) -> str:
        return (
            f"engine.max_input_len ({self.max_input_len} tokens), or with their output than "
            f"engine.max_seq_len ({self.max_seq_len})"
        )


def parse_checks(text: str | None) -> list[str]:
    """`greedy,json` -> names; None: all."""
    if text is None:
        return list(CHECKS)
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in CHECKS]
    if unknown or not names:
        name = unknown[0] if unknown else ""
        raise InputError(
            f"--checks {text}: {name!r} is no check{did_you_mean(name, CHECKS)} "
            f"(checks: {', '.join(CHECKS)})"
        )
    return [name for name in CHECKS if name in names]


def make_plan(
    wishes: Wishes,
    sets: Sequence[PromptSet],
    encode: Encode,
    *,
    vocab_size: int | None = None,  # of the tokens; None: prompts stay text
    room: Room,
    sampling: Sampling,
    note: Callable[[str], None],
) -> Plan:
    """Everything that is asked; prompts of the user's that do not fit are refused, all at once."""

    def ask(domain: str, prompt: Prompt, max_tokens: int) -> Question:
        tokens = encode(domain, prompt)
        return Question(
            domain=domain, id=prompt.id, text=prompt.text, tokens=tokens, max_tokens=max_tokens
        )

    greedy = [ask(s.domain, p, wishes.max_tokens) for s in sets for p in s.prompts]
    _refuse_long(greedy, room)
    if vocab_size is not None:
        domains = {s.domain: [q.tokens for q in greedy if q.domain == s.domain] for s in sets}
        refuse_random(domains, vocab_size)
    sampled = [
        replace(question, max_tokens=wishes.sample_tokens, sampling=wishes.sampling(sampling))
        for question in _shortest(greedy, wishes.sample_prompts)
    ]
    tasks: dict[str, list[tuple[Task, Question]]] = {}
    for name, (load, max_tokens) in _TASKS.items():
        if name in wishes.checks:
            asked = [(task, ask(name, Prompt(task.id, task.prompt), max_tokens)) for task in load()]
            tasks[name] = [pair for pair in asked if room.fits(pair[1])]
            if left_out := len(asked) - len(tasks[name]):
                note(f"{name}: {left_out} of {len(asked)} prompts are longer than {room}; left out")
    plan = Plan(
        greedy=greedy if "greedy" in wishes.checks else (),
        sampled=sampled if "sampled" in wishes.checks else (),
        json=tasks.get("json", ()),
        choice=tasks.get("choice", ()),
        samples=wishes.samples,
        alpha=wishes.alpha,
    )
    if not plan.answers:
        raise InputError(f"--checks {','.join(wishes.checks)}: nothing is left to check")
    return plan


def _refuse_long(questions: Sequence[Question], room: Room) -> None:
    if long := [question for question in questions if not room.fits(question)]:
        first = long[0]
        raise InputError(
            f"{len(long)} prompt(s) are longer than {room}, first {first.domain}/{first.id} with "
            f"{len(first.tokens)} tokens and {first.max_tokens} to come"
        )


def _shortest(questions: Sequence[Question], count: int) -> list[Question]:
    """The shortest of every domain in turn: each is read once for every sample."""
    domains: dict[str, list[Question]] = {}
    for question in sorted(questions, key=lambda q: len(q.tokens) or len(q.text)):
        domains.setdefault(question.domain, []).append(question)
    turns: Iterable[Question | None] = chain.from_iterable(zip_longest(*domains.values()))
    return [question for question in turns if question is not None][:count]
