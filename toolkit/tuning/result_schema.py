"""The JSON Schema of results.json, from the types that it is written from."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from toolkit.measure.records import RequestRecord
from toolkit.recipe.json_schema import recipe_schema
from toolkit.tuning.between import Promise
from toolkit.tuning.compare import SCHEMA
from toolkit.tuning.diagnosis import Diagnosis
from toolkit.tuning.findings import Finding
from toolkit.tuning.intervals import Interval
from toolkit.tuning.plans import Plan
from toolkit.tuning.summary import Cell


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ChoiceEntry(_Part):
    """What to use for one domain (`all`: every one) at one batch size."""

    batch_size: int
    domain: str
    verdict: str = Field(pattern="^(on|off|undecided)$")
    k: int = Field(ge=0, description="0: plain decoding.")
    best_k: int
    speedup: Interval | None = Field(
        description="Of best_k; from a trace: predicted over all prompts, corrected by the rounds."
    )
    reason: str


class SpellingEntry(_Part):
    """The decision in one server's words; a table by batch size is a list of pairs."""

    server: str
    settings: dict[str, Any]
    note: str


class RoundCounts(_Part):
    """Rounds of this run."""

    planned: int
    measured: int
    resumed: int


class RunEntry(_Part):
    """One group at one draft length; its requests are among the records."""

    domain: str
    batch_size: int
    k: int
    round: str
    wall_ns: int
    emitted_tokens: int


class TuneDocument(_Part):
    """results.json. `--json` prints the same without runs and records, with `files`."""

    schema_: str = Field(alias="schema", pattern=f"^{SCHEMA}$")
    verdict: str
    draft_length_schedule: list[tuple[int, int]] | None = Field(
        description="(from this batch size on, draft length); 0: off; null: undecided."
    )
    plans: list[Plan]
    deploy: list[SpellingEntry]
    complete: bool
    rounds: RoundCounts
    choices: list[ChoiceEntry]
    promises: list[Promise] = []
    findings: list[Finding]
    diagnosis: list[Diagnosis]
    summary: list[Cell]
    recipe: dict[str, Any]
    settings: dict[str, Any]
    versions: dict[str, Any]
    trace: dict[str, Any] | None = Field(None, description="--mode trace: what was predicted.")
    comparison: dict[str, Any] | None = Field(None, description="--compare: the gates.")
    as_: dict[str, Any] | None = Field(None, alias="as", description="--as: another tool's words.")
    runs: list[RunEntry] = []
    records: list[RequestRecord] = []
    files: dict[str, str] = {}


def result_schema() -> dict[str, Any]:
    """Draft 2020-12."""
    schema = TypeAdapter(TuneDocument).json_schema(by_alias=True, mode="validation")
    return {"$schema": recipe_schema()["$schema"], **schema, "title": SCHEMA}
