"""What the clients of a load ask for, and which of them change their minds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any

from numpy.typing import NDArray

from toolkit.serving.client import Ask


@dataclass(frozen=True, slots=True)
class Job:
    """One request of a load."""

    ask: Ask
    cancel_after: int | None = None  # responses after which its client goes away
    # Inputs that are sent as they are, instead of the request's, whatever the model declares.
    raw: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def jobs(asks: Sequence[Ask], *, cancel_rate: float = 0.0, seed: int = 0) -> Iterator[Job]:
    """Without end, in rounds over `asks`; a part of them goes away somewhere in the first quarter.

    From the second round on a number stands in front of the prompt: a prompt that comes again word
    for word would find its keys and values in a cache and flatter every figure.
    """
    rng = Random(seed)
    for turn in count():
        for ask in asks:
            if turn:
                ask = replace(ask, text_input=f"{turn}. {ask.text_input}")
            cancels = rng.random() < cancel_rate
            # A response is rarely more than two tokens on average: most cancellations come in time.
            yield Job(ask, rng.randint(0, max(ask.max_tokens // 8, 1)) if cancels else None)
