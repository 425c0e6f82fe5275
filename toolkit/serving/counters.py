"""Prometheus counters of a served model, in vLLM's words; counts only, rates are for the reader."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from time import monotonic

_FLUSH_S = 0.25  # crossing into the server costs tens of microseconds a metric

DRAFTS = "spec_decode_num_drafts_total"
DRAFT_TOKENS = "spec_decode_num_draft_tokens_total"
ACCEPTED_TOKENS = "spec_decode_num_accepted_tokens_total"
ACCEPTED_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"
DRAFT_FAILURES = "spec_decode_draft_failures_total"
GENERATION_TOKENS = "generation_tokens_total"
REUSED_TOKENS = "prefix_cache_hit_tokens_total"
ACTIVE_SEQUENCES = "spectool_active_sequences"

DESCRIPTIONS = {
    DRAFTS: "Verify steps that had draft tokens.",
    DRAFT_TOKENS: "Draft tokens that were verified.",
    ACCEPTED_TOKENS: "Draft tokens that stood.",
    ACCEPTED_PER_POSITION: "Draft tokens that stood, by their position in the draft.",
    DRAFT_FAILURES: "Requests that went on without a draft because the draft model failed.",
    GENERATION_TOKENS: "Tokens given to clients.",
    REUSED_TOKENS: "Prompt tokens that did not have to be read again.",
}
GAUGES = {ACTIVE_SEQUENCES: "Sequences that requests hold in the model's KV cache."}

# (name, labels, amount): add to a counter. Set by the Triton adapter.
Increment = Callable[[str, Mapping[str, str], int], None]


class SpeculationCounters:
    """Adds up between flushes; safe to use from many threads."""

    def __init__(self, increment: Increment) -> None:
        self._increment = increment
        self._lock = threading.Lock()
        self._pending: Counter[tuple[str, int | None]] = Counter()
        self._flushed = monotonic()

    def add(self, tokens: int, drafted: int, accepted: int) -> None:
        """One step of one request emitted `tokens`, `accepted` of the `drafted` among them."""
        with self._lock:
            self._pending[GENERATION_TOKENS, None] += tokens
            if drafted:
                self._pending[DRAFTS, None] += 1
                self._pending[DRAFT_TOKENS, None] += drafted
                self._pending[ACCEPTED_TOKENS, None] += accepted
                self._pending.update(
                    (ACCEPTED_PER_POSITION, position) for position in range(accepted)
                )
        if monotonic() - self._flushed > _FLUSH_S:
            self.flush()

    def count(self, name: str, amount: int = 1) -> None:
        with self._lock:
            self._pending[name, None] += amount

    def flush(self) -> None:
        """Hand everything to the server's metrics."""
        with self._lock:
            pending, self._pending = self._pending, Counter()
            self._flushed = monotonic()
        for (name, position), amount in pending.items():
            if amount:
                labels = {} if position is None else {"position": str(position)}
                self._increment(name, labels, amount)
