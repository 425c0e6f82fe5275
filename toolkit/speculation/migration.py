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
