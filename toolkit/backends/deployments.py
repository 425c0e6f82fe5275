"""Deployments of one recipe that were started with different draft lengths, as one loop.

A deployment drafts as it was started. Asked in turns, several of them answer as one engine does
that drafts as each request says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from toolkit.backends.runtime import connect_runtime
from toolkit.checkpoint.tokenizer import Tokenizer
from toolkit.engine.built import BuiltModels
from toolkit.recipe.schema import Recipe
from toolkit.registry import DRAFTERS
from toolkit.speculation.generation import GenerationLoop
from toolkit.speculation.request import Chunk, Request

PLAIN = 0


@dataclass(frozen=True)
class Deployments:
    """One server for each draft length, plain decoding (0) among them."""

    loops: Mapping[int, GenerationLoop]
    tokenizer: Tokenizer


class DeploymentsLoop:
    """Requests that run together name one draft length, and go to its deployment."""

    def __init__(self, loops: Mapping[int, GenerationLoop]) -> None:
        self._loops = loops
        self._asked = loops[PLAIN]

    def submit(self, request: Request) -> int:
        wanted = self._loops[PLAIN if request.draft_len is None else request.draft_len]
        if wanted is not self._asked:
            if self._asked.active:
                raise RuntimeError("requests of another draft length are still running")
            self._asked = wanted
        return wanted.submit(request)

    def step(self) -> list[Chunk]:
        return self._asked.step()

    def close(self) -> None:
        self._asked.close()

    def forget(self, request: int) -> None:
        self._asked.forget(request)


def connect_deployments(built: BuiltModels, urls: Mapping[int, str]) -> Deployments:
    """The recipe where servers run it already, by the draft length that each was started with."""
    runtimes = {
        k: connect_runtime(replace(built, recipe=drafting(built.recipe, k)), url)
        for k, url in urls.items()
    }
    loops = {k: runtime.loop() for k, runtime in runtimes.items()}
    return Deployments(loops, runtimes[PLAIN].tokenizer)


def drafting(recipe: Recipe, k: int) -> Recipe:
    """The recipe as it is deployed for this draft length; 0: without speculation."""
    options = recipe.speculation
    if k == PLAIN:
        changed = DRAFTERS["none"].Options()
    else:
        changed = options.model_copy(update=DRAFTERS[options.drafter].as_deep_as(options, k))
    return recipe.model_copy(update={"speculation": changed})
