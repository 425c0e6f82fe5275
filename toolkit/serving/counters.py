"""Prometheus metrics of a served model, in the words of vLLM and TensorRT-LLM (their prefixes off).

Counts and sums only: rates and quantiles are for the reader. Histograms hold one observation a
request, because crossing into the server costs tens of microseconds.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic

_FLUSH_S = 0.25

DRAFTS = "spec_decode_num_drafts_total"
DRAFT_TOKENS = "spec_decode_num_draft_tokens_total"
ACCEPTED_TOKENS = "spec_decode_num_accepted_tokens_total"
ACCEPTED_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"
DRAFT_FAILURES = "spec_decode_draft_failures_total"
DRAFT_SECONDS = "spec_decode_draft_seconds_total"
VERIFY_SECONDS = "spec_decode_verify_seconds_total"
GENERATION_TOKENS = "generation_tokens_total"
REQUESTS = "request_success_total"
REUSED_TOKENS = "prefix_cache_hit_tokens_total"

SPECULATION = (DRAFTS, DRAFT_TOKENS, ACCEPTED_TOKENS, GENERATION_TOKENS)

DESCRIPTIONS = {
    DRAFTS: "Verify steps that had draft tokens.",
    DRAFT_TOKENS: "Draft tokens that were verified.",
    ACCEPTED_TOKENS: "Draft tokens that stood.",
    ACCEPTED_PER_POSITION: "Draft tokens that stood, by their position in the draft.",
    DRAFT_FAILURES: "Requests that went on without a draft because the draft model failed.",
    DRAFT_SECONDS: "Time that requests waited for drafts.",
    VERIFY_SECONDS: "Time that requests waited for the target to verify their drafts.",
    GENERATION_TOKENS: "Tokens given to clients.",
    REQUESTS: "Requests that were answered whole, by what ended them.",
    REUSED_TOKENS: "Prompt tokens that did not have to be read again.",
}

ACTIVE_SEQUENCES = "spectool_active_sequences"
RUNNING = "num_requests_running"
WAITING = "num_requests_waiting"
KV_UTILIZATION = "kv_cache_utilization"
GAUGES = {
    ACTIVE_SEQUENCES: "Sequences that requests hold in the model's KV cache.",
    RUNNING: "Requests at work.",
    WAITING: "Requests that wait for a sequence.",
    KV_UTILIZATION: "The part of the KV cache that is in use, 0 to 1.",
}

ACCEPTANCE_LENGTH = "spec_decode_acceptance_length"
TTFT = "time_to_first_token_seconds"
TPOT = "time_per_output_token_seconds"
E2E = "e2e_request_latency_seconds"
_MILLISECONDS = (1, 2, 3, 5, 7.5, 10, 15, 20, 30, 50, 75, 100, 200, 500, 1000, 5000)
_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300)
# Name -> description, upper bounds of the buckets.
HISTOGRAMS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    ACCEPTANCE_LENGTH: (
        "Tokens of a verify step that had a draft, mean of a request (1: nothing was accepted).",
        (1, 1.25, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 8, 12, 16, 32),
    ),
    TTFT: ("From the request to its first token.", _SECONDS),
    TPOT: (
        "Time for a token after the first, mean of a request, by whether it drafted.",
        tuple(ms / 1000 for ms in _MILLISECONDS),
    ),
    E2E: ("From the request to its last token.", _SECONDS),
}

# (name, labels, amount): add to a counter, or observe. Set by the Triton adapter.
Add = Callable[[str, Mapping[str, str], float], None]
_Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFigures:
    """A request that was answered whole; `drafts` are its verify steps with draft tokens."""

    finish_reason: str
    output_tokens: int
    drafts: int
    accepted: int
    ttft_s: float
    e2e_s: float


class SpeculationCounters:
    """Adds up between flushes; safe to use from many threads."""

    def __init__(self, increment: Add, observe: Add = lambda name, labels, value: None) -> None:
        self._increment, self._observe = increment, observe
        self._lock = threading.Lock()
        self._pending: Counter[tuple[str, _Labels]] = Counter()
        self._seconds: dict[str, float] = {}
        self._flushed = monotonic()

    def start(self, *names: str) -> None:
        """Show these as 0: a counter that first appears with a value hides its first increase."""
        for name in names:
            self._increment(name, {}, 0)

    def add(self, tokens: int, drafted: int, accepted: int) -> None:
        """One step of one request emitted `tokens`, `accepted` of the `drafted` among them."""
        with self._lock:
            self._pending[GENERATION_TOKENS, ()] += tokens
            if drafted:
                self._pending[DRAFTS, ()] += 1
                self._pending[DRAFT_TOKENS, ()] += drafted
                self._pending[ACCEPTED_TOKENS, ()] += accepted
                self._pending.update(
                    (ACCEPTED_PER_POSITION, (("position", str(position)),))
                    for position in range(accepted)
                )
        if monotonic() - self._flushed > _FLUSH_S:
            self.flush()

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        with self._lock:
            self._pending[name, tuple(labels.items())] += amount

    def spend(self, draft_s: float, verify_s: float) -> None:
        """One step waited so long for its draft and for the target."""
        with self._lock:
            for name, seconds in ((DRAFT_SECONDS, draft_s), (VERIFY_SECONDS, verify_s)):
                self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def finished(self, figures: RequestFigures) -> None:
        """A request has its last token."""
        self.count(REQUESTS, finished_reason=figures.finish_reason)
        self._observe(TTFT, {}, figures.ttft_s)
        self._observe(E2E, {}, figures.e2e_s)
        if figures.output_tokens > 1:
            tpot = (figures.e2e_s - figures.ttft_s) / (figures.output_tokens - 1)
            self._observe(TPOT, {"drafted": str(figures.drafts > 0).lower()}, tpot)
        if figures.drafts:
            self._observe(ACCEPTANCE_LENGTH, {}, 1 + figures.accepted / figures.drafts)

    def flush(self) -> None:
        """Hand everything to the server's metrics."""
        with self._lock:
            pending, self._pending = self._pending, Counter()
            seconds, self._seconds = self._seconds, {}
            self._flushed = monotonic()
        for (name, labels), amount in pending.items():
            if amount:
                self._increment(name, dict(labels), amount)
        for name, spent in seconds.items():
            if spent > 0:
                self._increment(name, {}, spent)


class RequestGauge:
    """How many requests run and how many wait, where so many may run."""

    def __init__(self, show: Callable[[int, int], None], most: int) -> None:
        self._show, self._most = show, most
        self._count = 0
        self._lock = threading.Lock()
        self.set(0)

    def set(self, count: int) -> None:
        with self._lock:
            self._count = count
            self._show(min(count, self._most), max(count - self._most, 0))

    def change(self, by: int) -> None:
        with self._lock:
            self._count += by
            self._show(min(self._count, self._most), max(self._count - self._most, 0))
