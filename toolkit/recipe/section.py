"""What every part of a recipe is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the recipe: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
