"""A load as its user describes it, run from ordinary (not asynchronous) code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from toolkit.errors import InputError
from toolkit.measure.prompts import PromptSet
from toolkit.serving.client import Ask
from toolkit.serving.load.arrivals import Arrivals, Closed, Until
from toolkit.serving.load.drive import drive
from toolkit.serving.load.endpoint import Endpoint
from toolkit.serving.load.figures import Figures, figures
from toolkit.serving.load.jobs import Job, jobs
from toolkit.serving.load.sample import Sample
from toolkit.serving.load.saturation import Limit, Tried, closed, poisson, search

_MOST_CLIENTS, _MOST_RATE = 1024, 4096.0
_TIMES_EACH = 4


@dataclass(frozen=True, kw_only=True)
class Load:
    """Requests for one model of one server, and when they come."""

    address: str  # host:port of gRPC
    model: str | None
    asks: Sequence[Ask]
    arrivals: Arrivals
    requests: int | None = None
    seconds: float | None = None
    cancel_rate: float = 0.0
    timeout_s: float = 600.0
    seed: int = 0
    tokenizer: Path | None = None  # counts tokens where the server does not

    def run(self, advance: Callable[[], None] = lambda: None) -> tuple[str, Figures]:
        """The model that was asked, and the figures; a first request, uncounted, warms it up."""

        async def work() -> tuple[str, Figures]:
            async with await self._open() as endpoint:
                await self._warm_up(endpoint)
                return endpoint.model, await self._measure(endpoint, self, advance)

        return asyncio.run(work())

    def saturate(
        self, limit: Limit, on_try: Callable[[Arrivals], None] = lambda arrivals: None
    ) -> tuple[str, list[Tried]]:
        """Search from this load upwards (or down) for the most that holds the limit."""
        is_closed = isinstance(self.arrivals, Closed)
        start = self.arrivals.clients if isinstance(self.arrivals, Closed) else self.arrivals.rate

        async def work() -> tuple[str, list[Tried]]:
            async with await self._open() as endpoint:
                await self._warm_up(endpoint)

                async def measure(arrivals: Arrivals) -> Figures:
                    on_try(arrivals)
                    return await self._measure(endpoint, self._with(arrivals))

                tried = await search(
                    measure,
                    closed if is_closed else poisson,
                    limit,
                    start=start,
                    most=_MOST_CLIENTS if is_closed else _MOST_RATE,
                )
                return endpoint.model, tried

        return asyncio.run(work())

    def _with(self, arrivals: Arrivals) -> Load:
        """The same load at another strength: every client gets to ask a few times."""
        requests = self.requests
        if requests is not None and isinstance(arrivals, Closed):
            requests = max(requests, _TIMES_EACH * arrivals.clients)
        return replace(self, arrivals=arrivals, requests=requests)

    async def _open(self) -> Endpoint:
        endpoint = await Endpoint.open(self.address, self.model)
        if not endpoint.counts_tokens and self.tokenizer is None:
            await endpoint.close()
            raise InputError(
                f"{endpoint.model} does not say how many tokens it answers with "
                "(num_output_tokens); --tokenizer DIR counts them here"
            )
        return endpoint

    async def _warm_up(self, endpoint: Endpoint) -> None:
        until = Until(requests=1)
        await drive(endpoint, jobs(self.asks), Closed(1), until, timeout_s=self.timeout_s)

    async def _measure(
        self, endpoint: Endpoint, load: Load, advance: Callable[[], None] = lambda: None
    ) -> Figures:
        count = None if endpoint.counts_tokens else self._counter()

        def done(job: Job, sample: Sample) -> None:
            if count is not None:
                sample.output_tokens = count(sample.text)
            sample.text = ""  # hours of load must not fill this machine's memory
            advance()

        samples = await drive(
            endpoint,
            jobs(load.asks, cancel_rate=load.cancel_rate, seed=load.seed),
            load.arrivals,
            Until(load.requests, load.seconds),
            timeout_s=load.timeout_s,
            on_done=done,
        )
        return figures(samples)

    def _counter(self) -> Callable[[str], int]:
        from toolkit.checkpoint.tokenizer import load_tokenizer

        assert self.tokenizer is not None
        tokenizer = load_tokenizer(self.tokenizer)
        return lambda text: len(tokenizer.encode(text, add_special=False))


def shown(sets: Sequence[PromptSet], tokenizer: Path | None) -> list[str]:
    """What the server is sent: the domains in turns, as chats where a tokenizer has a template."""
    longest = max(len(found.prompts) for found in sets)
    turns = [
        found.prompts[place]
        for place in range(longest)
        for found in sets
        if place < len(found.prompts)
    ]
    if tokenizer is None:
        return [prompt.text for prompt in turns]
    from toolkit.checkpoint.tokenizer import load_tokenizer

    template = load_tokenizer(tokenizer)
    return [
        prompt.text
        if prompt.raw
        else template.chat_text([{"role": "user", "content": prompt.text}])
        for prompt in turns
    ]
