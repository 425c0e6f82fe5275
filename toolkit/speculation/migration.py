"""What becomes of a drafter's options on another backend or release, field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from toolkit.recipe.schema import Recipe

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


@dataclass(frozen=True)
class Moved:
    """The speculation section as the other backend takes it."""

    options: Mapping[str, Any]
    changes: tuple[Change, ...] = ()


class MigrationSide:
    """The part of a drafter that knows its way to another backend."""

    # What to use instead where this drafter does not exist -> what that costs.
    nearest: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def migrate_to(cls, recipe: Recipe, backend: str, version: str) -> Moved:
        """The options there. Asked only where `unsupported_on` has no objection.

        Fields that are not in `changes` are kept as they are.
        """
        return Moved(recipe.speculation.model_dump(mode="json"))
