"""What another server is told of a recipe's decision: options it documents, and what is lost."""

from __future__ import annotations

import json
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from toolkit.errors import RecipeError
from toolkit.recipe.schema import Recipe
from toolkit.registry import DRAFTERS

Value = str | int | bool | dict[str, Any]
# What every method says of the speculation section, in one way or another.
_SAID = {"drafter", "max_draft_len", "draft_length", "draft", "heads"}


@dataclass(frozen=True)
class Option:
    """One documented option: the kind of value that it takes, and what it does."""

    takes: str  # int, float, str, flag, json, or the words that are allowed: "auto|float16"
    meaning: str

    @property
    def choices(self) -> tuple[str, ...]:
        return tuple(self.takes.split("|")) if "|" in self.takes else ()


@dataclass
class Answer:
    """What is gathered for one recipe: options in the order in which they are written."""

    program: list[str] = field(default_factory=list)
    options: dict[str, Value] = field(default_factory=dict)
    steps: list[list[str]] = field(default_factory=list)  # commands to run once, before
    notes: list[str] = field(default_factory=list)  # what is lost, or means something else
    problems: list[str] = field(default_factory=list)  # why there is no such server
    said: set[str] = field(default_factory=lambda: set(_SAID))  # options of the drafter


Method = Callable[[Recipe, Answer], None]


@dataclass(frozen=True)
class Export:
    """A recipe in another server's words."""

    peer: str
    text: str
    options: Mapping[str, Value]
    steps: tuple[str, ...]
    notes: tuple[str, ...]
    documented_in: str

    def to_json(self) -> dict[str, Any]:
        return {
            "to": self.peer,
            "text": self.text,
            "options": dict(self.options),
            "steps": list(self.steps),
            "notes": list(self.notes),
            "documented_in": self.documented_in,
        }


class Peer(ABC):
    """One server. Its file holds its options, and how each drafter is said in them."""

    name: ClassVar[str]
    title: ClassVar[str]
    documented_in: ClassVar[str]
    options: ClassVar[Mapping[str, Option]]
    methods: ClassVar[Mapping[str, Method]]  # by drafter
    policies: ClassVar[Mapping[str, Method]] = {}  # by draft-length policy, besides fixed

    @classmethod
    def export(cls, recipe: Recipe) -> Export:
        """The same decision, or a RecipeError that names everything that has no place there."""
        answer = Answer()
        cls.describe(recipe, answer)
        drafter = recipe.speculation.drafter
        if drafter in cls.methods:
            cls.methods[drafter](recipe, answer)
            cls._draft_length(recipe, answer)
            cls._left_out(recipe, answer)
        else:
            answer.problems.append(cls._without(drafter))
        answer.steps = [list(step) for step in dict.fromkeys(map(tuple, answer.steps))]
        if answer.problems:
            raise RecipeError(
                f"{recipe.name} for {cls.title}", list(dict.fromkeys(answer.problems))
            )
        return Export(
            peer=cls.name,
            text=cls.render(recipe, answer),
            options=answer.options,
            steps=tuple(map(shlex.join, answer.steps)),
            notes=tuple(dict.fromkeys(answer.notes)),
            documented_in=cls.documented_in,
        )

    @classmethod
    @abstractmethod
    def describe(cls, recipe: Recipe, answer: Answer) -> None:
        """The target and the sizes, whatever drafts."""

    @classmethod
    def render(cls, recipe: Recipe, answer: Answer) -> str:
        """A command for the shell, with what is to be known as comments above it."""
        lines = [shlex.join(answer.program)]
        for name, value in answer.options.items():
            shown = [name] if value is True else [name, written(value)]
            lines.append("  " + shlex.join(shown))
        return comments(recipe, cls, answer) + " \\\n".join(lines) + "\n"

    @classmethod
    def _draft_length(cls, recipe: Recipe, answer: Answer) -> None:
        policy = recipe.speculation.draft_length.policy
        if policy == "fixed" or recipe.speculation.drafter == "none":
            return
        if policy in cls.policies:
            cls.policies[policy](recipe, answer)
            return
        answer.notes.append(
            f"speculation.draft_length: {cls.title} has no {policy} draft length like this one; "
            "every step drafts the full length"
        )

    @classmethod
    def _left_out(cls, recipe: Recipe, answer: Answer) -> None:
        """Options of the drafter that the user set and nothing speaks of."""
        for name, value in recipe.speculation.model_dump(exclude_defaults=True).items():
            if name not in answer.said:
                answer.notes.append(
                    f"speculation.{name}: {value} cannot be said to {cls.title}; left out"
                )

    @classmethod
    def _without(cls, drafter: str) -> str:
        known = ", ".join(name for name in cls.methods if name in DRAFTERS)
        nearest = [
            f"{name} ({cost})"
            for name, cost in DRAFTERS[drafter].nearest.items()
            if name in cls.methods
        ]
        return (
            f"speculation.drafter: {cls.title} has no {drafter!r} (it has: {known})"
            + (f"; nearest: {', or '.join(nearest)}" if nearest else "")
            + "; --set 'speculation={drafter: none}' exports plain decoding"
        )


def written(value: Value) -> str:
    """A value as one word of a command line."""
    return json.dumps(value) if isinstance(value, dict) else str(value)


def comments(recipe: Recipe, peer: type[Peer], answer: Answer) -> str:
    """What, by whom, what first, and what is lost: one `#` a line, whatever is in the text."""
    said = [
        f"Recipe {recipe.name} for {peer.title}, as documented in {peer.documented_in}.",
        *(f"first: {shlex.join(step)}" for step in answer.steps),
        *(f"note: {note}" for note in dict.fromkeys(answer.notes)),
    ]
    return "".join(f"# {line}\n" for text in said for line in text.splitlines())
