"""The recipe's grammar: what every output obeys."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from toolkit.recipe.section import Section

GuideType = Literal["json", "json_schema", "regex", "ebnf_grammar"]


class GuidedDecoding(Section):
    """A grammar that every output obeys, unless its request names another one."""

    guide_type: GuideType = Field(
        "json_schema", description="As TensorRT-LLM names them; json is any object or array."
    )
    guide: str | dict[str, Any] | None = Field(
        None, description="The grammar's text; a JSON schema may also be written as YAML."
    )
    guide_file: str | None = Field(None, min_length=1, description="A file with it, instead.")

    @model_validator(mode="after")
    def _one_guide(self) -> GuidedDecoding:
        given = [name for name in ("guide", "guide_file") if getattr(self, name) is not None]
        if self.guide_type == "json" and given:
            raise ValueError(f"guide_type json takes no {given[0]}; remove it, or: json_schema")
        if self.guide_type != "json" and len(given) != 1:
            raise ValueError("give the grammar with either guide or guide_file")
        if isinstance(self.guide, dict) and self.guide_type != "json_schema":
            raise ValueError(f"guide_type {self.guide_type} takes a text, not a mapping")
        return self
