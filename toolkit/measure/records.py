"""What a measurement leaves behind: integers per request. Every rate is derived from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request. Times are nanoseconds after its submission; token counts are of the output.

    The record closes with the chunk that reaches the wanted length, or at a stop token, even when
    the request runs on to keep the batch full.
    """

    domain: str
    prompt_id: str
    batch_size: int
    k: int  # draft length; 0: plain decoding
    round: str
    temperature: float
    prompt_tokens: int
    prefill_tokens: int  # emitted by prefill: 1
    output_tokens: int
    verify_steps: int
    drafted_per_step: tuple[int, ...]
    accepted_per_step: tuple[int, ...]
    ttft_ns: int
    e2e_ns: int
    chunk_ns: tuple[int, ...]  # arrival of each chunk
    bigrams: int
    unique_bigrams: int
    finish: Literal["length", "stop"]

    @property
    def draft_tokens(self) -> int:
        return sum(self.drafted_per_step)

    @property
    def accepted_tokens(self) -> int:
        return sum(self.accepted_per_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRun:
    """Requests that ran together from submission until the slowest of them was measured."""

    domain: str
    batch_size: int
    k: int
    round: str
    wall_ns: int
    emitted_tokens: int  # all of them, also those after a record closed
    requests: tuple[RequestRecord, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GroupRun:
        requests = tuple(_request(entry) for entry in data["requests"])
        return cls(**{**data, "requests": requests})


_LISTS = ("drafted_per_step", "accepted_per_step", "chunk_ns")
COLUMNS = tuple(field.name for field in fields(RequestRecord))


def _request(data: Mapping[str, Any]) -> RequestRecord:
    return RequestRecord(**{**data, **{name: tuple(data[name]) for name in _LISTS}})


def csv_row(record: RequestRecord) -> list[Any]:
    """The record under `COLUMNS`; a list becomes numbers with a space between them."""
    values = asdict(record)
    return [
        " ".join(map(str, values[name])) if name in _LISTS else values[name] for name in COLUMNS
    ]
