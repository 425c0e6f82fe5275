"""A loop whose output and clock are written down beforehand, so that every statistic can be checked
against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from toolkit.speculation.loop import Chunk, Request

MS = 1_000_000
# What one step emits for a request: tokens, accepted, drafted.
Emission = tuple[list[int], int, int]


class FakeClock:
    """Stands still until somebody lets time pass."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def pass_ms(self, milliseconds: float) -> None:
        self.now_ns += round(milliseconds * MS)


class FakeLoop:
    """Requests emit what `script` says; a step takes `step_ms` of the requests that take part."""

    def __init__(
        self,
        clock: FakeClock,
        script: Callable[[Request], Iterator[Emission]],
        step_ms: Callable[[Sequence[Request], bool], float],  # the bool: it is the first step
    ) -> None:
        self.clock = clock
        self.script = script
        self.step_ms = step_ms
        self.running: dict[int, tuple[Request, Iterator[Emission]]] = {}
        self.submitted: list[Request] = []
        self.together: list[int] = []  # how many ran in each step
        self.fresh = False
        self.fail_at: int | None = None  # raise KeyboardInterrupt in this step

    def submit(self, request: Request) -> int:
        self.submitted.append(request)
        number = len(self.submitted)
        self.running[number] = (request, self.script(request))
        self.fresh = True
        return number

    def step(self) -> list[Chunk]:
        if self.fail_at is not None and len(self.together) >= self.fail_at:
            raise KeyboardInterrupt
        self.together.append(len(self.running))
        self.clock.pass_ms(self.step_ms([r for r, _ in self.running.values()], self.fresh))
        self.fresh = False
        chunks = []
        for number, (_, emissions) in self.running.items():
            tokens, accepted, drafted = next(emissions)
            if tokens:  # nothing: this request is still in prefill
                chunks.append(Chunk(number, tokens, accepted, drafted, None))
        return chunks

    def close(self) -> None:
        self.running.clear()

    def forget(self, request: int) -> None:
        assert request not in self.running


class FakeTokenizer:
    """A token per character; a chat message is framed by 1 and 2."""

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return [1, *self.encode(messages[0]["content"]), 2]


def endless(step: Callable[[Request, int], Emission]) -> Callable[[Request], Iterator[Emission]]:
    """A script that asks `step` for the emission of each step number, prefill being 0."""

    def script(request: Request) -> Iterator[Emission]:
        number = 0
        while True:
            yield step(request, number)
            number += 1

    return script
