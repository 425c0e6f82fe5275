"""What both fakes of the LLM API serve: a text that is known in advance, in steps that are too.

Token i of an answer is (sum of the prompt + 7 i) mod 101, so no two neighbours repeat soon. Step s
accepts `accepted[s mod len]` of `k` drafts. Like the real thing, the first step is the prefill's
and emits one token, and the last step is cut at max_tokens.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class FakeRequest:
    """Counts as the executor keeps them."""

    request_id: int
    iterations: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0

    def perf_metrics(self) -> dict[str, Any]:
        """As /perf_metrics tells it; arrival at 10 s, 0.1 s to the first token, 0.04 s a step."""
        last = 10.1 + 0.04 * (self.iterations - 1)
        metrics: dict[str, Any] = {
            "first_iter": 0,
            "last_iter": self.iterations - 1,
            "timing_metrics": {
                "server_arrival_time": 9.99,
                "arrival_time": 10.0,
                "first_scheduled_time": 10.01,
                "first_token_time": 10.1,
                "server_first_token_time": 10.11,
                "last_token_time": last,
            },
            "kv_cache_metrics": {
                "num_total_allocated_blocks": 1,
                "num_new_allocated_blocks": 1,
                "num_reused_blocks": 0,
                "num_missed_blocks": 1,
            },
        }
        if self.drafted:
            metrics["speculative_decoding"] = {
                "acceptance_rate": self.accepted / self.drafted,
                "total_accepted_draft_tokens": self.accepted,
                "total_draft_tokens": self.drafted,
            }
        return {"request_id": self.request_id, "perf_metrics": metrics}


@dataclass
class FakeDeployment:
    """k = 0 decodes plainly. `merge` steps go into one response. Like a batch in flight,
    `together` requests decode step by step together.
    """

    k: int = 4
    accepted: Sequence[int] = (3, 0, 2)
    merge: int = 1
    together: int = 1
    eos: int = 100
    step_s: float = 0.0  # what a step takes
    finished: list[FakeRequest] = field(default_factory=list)
    iteration_log: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    next_id: int = 1
    batch: list[FakeRequest] = field(default_factory=list)

    def begin(self) -> FakeRequest:
        with self.lock:
            self.next_id += 1
            self.batch.append(FakeRequest(self.next_id - 1))
            return self.batch[-1]

    def answer(
        self,
        request: FakeRequest,
        prompt: Sequence[int],
        max_tokens: int,
        stop_ids: Sequence[int],
        ignore_eos: bool,
    ) -> Iterator[tuple[list[int], str | None]]:
        """(new tokens, finish reason) of each response."""
        held: list[int] = []
        stops = {*stop_ids, *([] if ignore_eos else [self.eos])}
        while True:
            tokens = self._step(request, sum(prompt), max_tokens)
            stop = next((i for i, token in enumerate(tokens, 1) if token in stops), 0)
            tokens = tokens[:stop] if stop else tokens
            request.emitted += len(tokens)
            held += tokens
            done = "stop" if stop else "length" if request.emitted == max_tokens else None
            if done or request.iterations % self.merge == 0:
                if done:
                    with self.lock:
                        self.finished.append(request)
                yield held, done
                held = []
            if done:
                return

    def _step(self, request: FakeRequest, start: int, max_tokens: int) -> list[int]:
        first = request.iterations == 0
        time.sleep(self.step_s)
        self._in_step(request)
        accepted = 0
        if not first and self.k:
            accepted = self.accepted[(request.iterations - 1) % len(self.accepted)]
        size = min(accepted + 1, max_tokens - request.emitted)
        request.iterations += 1
        drafts = 0 if first else self.k
        accepted = min(accepted, size)
        request.drafted += drafts
        request.accepted += accepted
        self._log(drafts, accepted)
        return [(start + 7 * (request.emitted + i)) % 101 for i in range(size)]

    def _in_step(self, request: FakeRequest) -> None:
        """Nobody is two steps ahead of anybody, and nobody decodes alone."""
        deadline = time.monotonic() + 10
        while self.together > 1 and time.monotonic() < deadline:
            with self.lock:
                slowest = min(other.iterations for other in self.batch)
                there = len(self.batch) >= self.together or request.iterations == 0
            if there and request.iterations <= slowest:
                return
            time.sleep(0.0005)

    def _log(self, drafts: int, accepted: int) -> None:
        entry: dict[str, Any] = {
            "iter": len(self.iteration_log),
            "iterLatencyMS": 40.0,
            "numActiveRequests": 1,
            "numQueuedRequests": 0,
            "inflightBatchingStats": {"numScheduledRequests": 1, "avgNumDecodedTokensPerIter": 0},
        }
        if self.k:
            entry["specDecodingStats"] = {
                "numDraftTokens": drafts,
                "numAcceptedTokens": accepted,
                "numRequestsWithDraftTokens": int(drafts > 0),
                "acceptanceLength": 1.0 + accepted,
                "iterLatencyMS": 0.0,
                "draftOverhead": 0.0,
            }
        with self.lock:
            self.iteration_log.append(entry)

    def take_iterations(self) -> list[dict[str, Any]]:
        """Drained on read."""
        with self.lock:
            log, self.iteration_log = self.iteration_log, []
            return log
