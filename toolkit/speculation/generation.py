"""What everybody who generates needs of a loop, whoever computes the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from toolkit.speculation.interfaces import SpeculationStats
from toolkit.speculation.request import Chunk, Output, Request


class GenerationLoop(Protocol):
    """`SpeculativeLoop`, and the loops over engines that draft by themselves."""

    @property
    def active(self) -> int: ...

    def submit(self, request: Request) -> int: ...

    def step(self) -> list[Chunk]: ...

    def cancel(self, request: int) -> Chunk | None: ...

    def close(self) -> None: ...

    def stats(self, request: int) -> SpeculationStats: ...

    def forget(self, request: int) -> None: ...

    def generate(self, requests: Sequence[Request]) -> list[Output]: ...
