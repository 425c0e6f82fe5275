"""What TensorRT-LLM says about itself, as integers that add: iterations, Prometheus, requests.

    /metrics               JSON list, one object an iteration, gone once read
    /prometheus/metrics    Prometheus text; newer releases put trtllm_ before every name
    /perf_metrics          JSON list, one object a finished request, gone once read

Rates are never taken over: acceptance is derived from these counts alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.errors import RunError

PREFIX = "trtllm_"
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(\{.*\})?\s+(\S+)(?:\s+\d+)?")
# The label sets of a counter are added; two names of one counter exist in newer releases.
_DRAFTED = ("spec_decode_num_draft_tokens_total", "spec_decode_drafted_tokens_total")
_ACCEPTED = ("spec_decode_num_accepted_tokens_total", "spec_decode_accepted_tokens_total")


@dataclass(frozen=True, kw_only=True)
class IterationStats:
    """Sums over iterations; `verify_steps` counts a request once in each iteration that drafts."""

    iterations: int
    draft_tokens: int
    accepted_tokens: int
    verify_steps: int
    max_active_requests: int

    @property
    def acceptance_length(self) -> float:
        return 1 + self.accepted_tokens / self.verify_steps if self.verify_steps else float("nan")

    @property
    def acceptance_rate(self) -> float:
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else float("nan")


@dataclass(frozen=True, kw_only=True)
class RequestMetrics:
    """One finished request as the server saw it; times are on its steady clock."""

    request_id: int
    first_iteration: int
    last_iteration: int
    arrival_ns: int
    first_scheduled_ns: int
    first_token_ns: int
    last_token_ns: int
    draft_tokens: int  # 0: it decoded plainly
    accepted_tokens: int

    @property
    def ttft_ns(self) -> int:
        return self.first_token_ns - self.arrival_ns


@dataclass(frozen=True, kw_only=True)
class PrometheusCounts:
    """Counters since the server started: take two and subtract. None: this release has none."""

    finished_requests: int | None
    draft_tokens: int | None
    accepted_tokens: int | None


def iteration_stats(entries: Sequence[Any], where: str) -> IterationStats:
    """Add up iterations, each a JSON object or its text (older releases give text)."""
    objects = [_object(entry, where) for entry in entries]
    parts = [
        _field(entry, "specDecodingStats", dict, where)
        for entry in objects
        if entry.get("specDecodingStats") is not None
    ]
    names = {
        "draft_tokens": "numDraftTokens",
        "accepted_tokens": "numAcceptedTokens",
        "verify_steps": "numRequestsWithDraftTokens",
    }
    return IterationStats(
        iterations=len(objects),
        max_active_requests=max(
            (_field(entry, "numActiveRequests", int, where) for entry in objects), default=0
        ),
        **{
            ours: sum(_field(p, theirs, int, where) for p in parts)
            for ours, theirs in names.items()
        },
    )


def require_speculation(stats: IterationStats, where: str) -> IterationStats:
    """The same, or why there is nothing to derive an acceptance from."""
    if not stats.iterations:
        raise RunError(
            f"{where}: no iteration statistics; deploy with enable_iter_perf_stats: true, and read "
            "them after requests have run (they are gone once read)"
        )
    if not stats.verify_steps:
        raise RunError(
            f"{where}: {stats.iterations} iteration(s) and none with draft tokens in "
            "specDecodingStats; speculation is off, or this release tells nothing about drafters "
            "inside the target's graph: use the requests' own counts"
        )
    return stats


def request_metrics(entries: Sequence[Any], where: str) -> list[RequestMetrics]:
    """The requests that ended since the last call."""
    found = []
    for entry in entries:
        outer = _object(entry, where)
        metrics = _field(outer, "perf_metrics", dict, where)
        times = _field(metrics, "timing_metrics", dict, where)
        drafts = metrics.get("speculative_decoding") or {}
        seconds = {
            name: round(_field(times, name, (int, float), where) * 1e9)
            for name in ("arrival_time", "first_scheduled_time", "first_token_time",
                         "last_token_time")
        }  # fmt: skip
        found.append(
            RequestMetrics(
                request_id=_field(outer, "request_id", int, where),
                first_iteration=_field(metrics, "first_iter", int, where),
                last_iteration=_field(metrics, "last_iter", int, where),
                arrival_ns=seconds["arrival_time"],
                first_scheduled_ns=seconds["first_scheduled_time"],
                first_token_ns=seconds["first_token_time"],
                last_token_ns=seconds["last_token_time"],
                draft_tokens=_field(drafts, "total_draft_tokens", int, where) if drafts else 0,
                accepted_tokens=(
                    _field(drafts, "total_accepted_draft_tokens", int, where) if drafts else 0
                ),
            )
        )
    return found


def require_requests(found: list[RequestMetrics], where: str) -> list[RequestMetrics]:
    """The same, or why the server tells nothing about requests that did run."""
    if not found:
        raise RunError(
            f"{where}: no request since the last call; deploy with return_perf_metrics: true and "
            "perf_metrics_max_requests above 0. Late previews of 1.3 and newer releases keep none "
            "in memory: they write files into perf_metrics_output_dir"
        )
    return found


def prometheus_samples(text: str, where: str) -> dict[str, float]:
    """Name without prefix -> value, label sets added; `_created` stamps are left out."""
    samples: dict[str, float] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _SAMPLE.fullmatch(line.strip())
        try:
            value = float(match[3]) if match else None
        except ValueError:
            value = None
        if match is None or value is None:
            raise RunError(f"{where}: line {number} is no Prometheus sample: {line[:200]!r}")
        name = match[1].removeprefix(PREFIX)
        if not name.endswith("_created"):
            samples[name] = samples.get(name, 0.0) + value
    return samples


def prometheus_counts(text: str, where: str) -> PrometheusCounts:
    """The counters of a scrape."""
    samples = prometheus_samples(text, where)
    return PrometheusCounts(
        finished_requests=_first(samples, ("request_success_total",)),
        draft_tokens=_first(samples, _DRAFTED),
        accepted_tokens=_first(samples, _ACCEPTED),
    )


def _first(samples: Mapping[str, float], names: Iterable[str]) -> int | None:
    return next((int(samples[name]) for name in names if name in samples), None)


def _object(entry: Any, where: str) -> Mapping[str, Any]:
    if isinstance(entry, str):
        try:
            entry = json.loads(entry)
        except ValueError:
            raise RunError(f"{where}: not JSON: {entry[:200]!r}") from None
    if not isinstance(entry, dict):
        raise RunError(f"{where}: expected objects, found {type(entry).__name__}")
    return entry


def _field(entry: Mapping[str, Any], name: str, kind: Any, where: str) -> Any:
    value = entry.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        known = ", ".join(sorted(entry)[:12])
        raise RunError(
            f"{where}: {name} is {value!r}; this release speaks another language than 1.0 to 1.4 "
            f"(it has: {known})"
        )
    return value
