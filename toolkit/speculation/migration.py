"""What becomes of a drafter and its options on another backend or release."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from toolkit.recipe.schema import Speculation

# kept: the same word, the same meaning. renamed: the same meaning under another word.
# changed: another value or another meaning. dropped: nothing there does this.
Kind = Literal["kept", "renamed", "changed", "dropped"]


@dataclass(frozen=True)
class Change:
    """What became of one field, in words."""

    field: str  # dotted, as in the recipe that is migrated
    kind: Kind
    text: str

    def to_json(self) -> dict[str, str]:
        return {"field": self.field, "kind": self.kind, "text": self.text}


# The two alternatives that most drafters share, with their price.
NGRAM_COSTS = (
    "no training and no second model, pays where the output repeats the prompt: NVIDIA reports 1.4 "
    "to 1.8 tokens a step in chat"
)
EAGLE3_COSTS = (
    "with a head trained for this target, published or trained on the target's own answers, 0.85 "
    "GB beside an 8B model"
)


class MigrationSide:
    """The part of a drafter that knows its way to another backend."""

    # What to use instead where this drafter does not exist -> what that costs.
    nearest: ClassVar[Mapping[str, str]] = {}
    # Options that may fall back to their defaults where a release refuses them, dotted -> those
    # that go with them. What is not here is part of the decision: without it there is no way over.
    optional: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @classmethod
    def means_on(cls, options: Speculation, backend: str) -> Iterator[Change]:
        """Options that stand as they are and mean something else there."""
        yield from ()
