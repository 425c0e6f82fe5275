"""One group of prompts through the loop together, and what is recorded of it.

Two rules keep the numbers comparable. Decoding is timed from the moment when every request of the
group has its first token, so that nobody's TPOT contains somebody else's prefill. And a request
whose record is complete runs on until the slowest one is measured, so that the batch stays full:
otherwise speculation, which ends at different times, would be timed on half-empty batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Protocol
from zlib import crc32

from toolkit.measure.prompts import Prompt
from toolkit.measure.records import GroupRun, RequestRecord
from toolkit.recipe.schema import Sampling
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.loop import Chunk, Request


class Loop(Protocol):
    """What a measurement needs of `SpeculativeLoop`."""

    def submit(self, request: Request) -> int: ...

    def step(self) -> list[Chunk]: ...

    def close(self) -> None: ...

    def forget(self, request: int) -> None: ...


class Encoder(Protocol):
    """What a measurement needs of a tokenizer."""

    def encode(self, text: str) -> list[int]: ...

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]: ...


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as the target reads it."""

    id: str
    domain: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What all points of one measurement share."""

    max_tokens: int  # output tokens of a record, unless it stops earlier
    sampling: Sampling
    stop_tokens: frozenset[int]


def encode_prompt(tokenizer: Encoder, domain: str, prompt: Prompt) -> EncodedPrompt:
    """Through the chat template, or as it stands when raw."""
    tokens = (
        tokenizer.encode(prompt.text)
        if prompt.raw
        else tokenizer.chat([{"role": "user", "content": prompt.text}])
    )
    return EncodedPrompt(prompt.id, domain, tuple(tokens))


def measure_group(
    loop: Loop,
    group: Sequence[EncodedPrompt],
    *,
    k: int,
    round: str,
    conditions: Conditions,
    by_policy: bool = False,
    clock: Callable[[], int] = perf_counter_ns,
) -> GroupRun:
    """Decode the group at draft length `k` (0: plainly) and record every request.

    `by_policy`: up to `k`, as the loop's own policy says.
    """
    start = clock()
    windows = {
        loop.submit(_request(prompt, k, conditions, by_policy)): _Window(prompt, conditions)
        for prompt in group
    }
    emitted = 0
    try:
        while any(window.finish is None for window in windows.values()):
            prefilling = not all(window.chunk_ns for window in windows.values())
            chunks = loop.step()
            now = clock() - start
            emitted += sum(len(chunk.tokens) for chunk in chunks)
            for chunk in chunks:
                windows[chunk.request].add(chunk, now, restart=prefilling)
    finally:
        loop.close()
        for request in windows:
            loop.forget(request)
    wall_ns = max(window.chunk_ns[-1] for window in windows.values())
    records = [window.record(len(group), k, round) for window in windows.values()]
    return GroupRun(
        domain=group[0].domain,
        batch_size=len(group),
        k=k,
        round=round,
        wall_ns=wall_ns,
        emitted_tokens=emitted,
        requests=tuple(records),
    )


def sampling_of(prompt: EncodedPrompt, sampling: Sampling) -> SamplingParams:
    """With a seed of its own for each prompt, the same for every k."""
    seed = ((sampling.seed or 0) + crc32(f"{prompt.domain}/{prompt.id}".encode())) % 2**63
    return SamplingParams(sampling.temperature, sampling.top_k, sampling.top_p, seed)


def _request(prompt: EncodedPrompt, k: int, conditions: Conditions, by_policy: bool) -> Request:
    # Others may take max_tokens steps while this one emits k + 1 in each: let it run so long.
    # Stop tokens stay unknown to the loop for the same reason.
    return Request(
        prompt=prompt.tokens,
        max_tokens=(conditions.max_tokens + 1) * (k + 1),
        sampling=sampling_of(prompt, conditions.sampling),
        draft_len=None if by_policy else k,
    )


@dataclass
class _Window:
    """What counts of one request: from its first token to the length wanted, or to a stop."""

    prompt: EncodedPrompt
    conditions: Conditions
    tokens: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    chunk_ns: list[int] = field(default_factory=list)
    finish: str | None = None

    def add(self, chunk: Chunk, now_ns: int, *, restart: bool) -> None:
        """Count a chunk; while others are still in prefill, the record begins anew with it."""
        if self.finish and not restart:
            return
        tokens = list(chunk.tokens)
        if restart:
            self.tokens, self.drafted, self.accepted, self.chunk_ns = [], [], [], []
            self.finish, tokens = None, tokens[-1:]
        stop = next((i for i, t in enumerate(tokens) if t in self.conditions.stop_tokens), None)
        if stop is not None:
            # Nobody is sent what follows a stop token: neither those tokens nor their drafts count.
            tokens = tokens[: stop + 1]
        self.tokens += tokens
        self.chunk_ns.append(now_ns)
        if not restart:
            self.drafted.append(chunk.drafted)
            self.accepted.append(min(chunk.accepted, len(tokens)))
        if stop is not None:
            self.finish = "stop"
        elif len(self.tokens) >= self.conditions.max_tokens or chunk.finish_reason:
            self.finish = "length"

    def record(self, batch_size: int, k: int, round: str) -> RequestRecord:
        pairs = list(zip(self.tokens, self.tokens[1:], strict=False))
        return RequestRecord(
            domain=self.prompt.domain,
            prompt_id=self.prompt.id,
            batch_size=batch_size,
            k=k,
            round=round,
            temperature=self.conditions.sampling.temperature,
            prompt_tokens=len(self.prompt.tokens),
            prefill_tokens=1,
            output_tokens=len(self.tokens),
            verify_steps=len(self.drafted),
            drafted_per_step=tuple(self.drafted),
            accepted_per_step=tuple(self.accepted),
            ttft_ns=self.chunk_ns[0],
            e2e_ns=self.chunk_ns[-1],
            chunk_ns=tuple(self.chunk_ns),
            bigrams=len(pairs),
            unique_bigrams=len(set(pairs)),
            finish="stop" if self.finish == "stop" else "length",
        )
