"""From what the LLM API hands out to the tensors of a response, each in its declared type.

Upstream's own model writes every figure as a string; `number` reads either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.serving.llmapi.request import LlmRequest

Arrays = dict[str, NDArray[Any]]

# Output -> (attribute of kv_cache_metrics, type); likewise below.
_KV_CACHE: Mapping[str, tuple[str, Any]] = {
    "kv_cache_reused_block": ("num_reused_blocks", np.int32),
    "kv_cache_missed_block": ("num_missed_blocks", np.int32),
    "kv_cache_alloc_new_blocks": ("num_new_allocated_blocks", np.int32),
    "kv_cache_alloc_total_blocks": ("num_total_allocated_blocks", np.int32),
    "kv_cache_hit_rate": ("kv_cache_hit_rate", np.float32),
}
_TIMES = ("arrival_time", "first_scheduled_time", "first_token_time", "last_token_time")
_SPECULATION: Mapping[str, tuple[str, Any]] = {
    "acceptance_rate": ("acceptance_rate", np.float32),
    "total_accepted_draft_tokens": ("total_accepted_draft_tokens", np.int32),
    "total_draft_tokens": ("total_draft_tokens", np.int32),
}


def number(value: Any) -> float:
    """A figure of a response: a number, its text, or either in bytes or an array of one."""
    if isinstance(value, np.ndarray):
        value = value.reshape(-1)[0]
    if isinstance(value, bytes):
        value = value.decode()
    return float(value)


def response_arrays(request: LlmRequest, outputs: list[Any], *, start: int = 0) -> Arrays:
    """The outputs of a response, their text from character `start` on."""
    found = {"text_output": _texts(output.text[start:] for output in outputs)}
    reasons: tuple[tuple[bool, str, Callable[[Any], Any]], ...] = (
        (request.finish_reason, "finish_reason", lambda output: output.finish_reason),
        (request.stop_reason, "stop_reason", lambda output: output.stop_reason),
    )
    for wanted, name, read in reasons:
        if wanted:
            found[name] = _texts(str(read(output)) for output in outputs)
    if request.cumulative_logprob:
        values = [getattr(output, "cumulative_logprob", None) for output in outputs]
        found["cumulative_logprob"] = np.array(
            [math.nan if value is None else value for value in values], np.float32
        )
    metrics = getattr(outputs[0], "request_perf_metrics", None)
    if request.perf_metrics and metrics is not None:
        found.update(_perf_arrays(metrics))
    return found


def draft_counts(output: Any) -> tuple[int, int]:
    """(drafted, accepted) of a finished request; zeros where it decoded plainly."""
    metrics = getattr(output, "request_perf_metrics", None)
    found = getattr(metrics, "speculative_decoding", None)
    if found is None:
        return 0, 0
    return int(found.total_draft_tokens), int(found.total_accepted_draft_tokens)


def request_times(output: Any) -> tuple[float, float] | None:
    """Seconds to the first and to the last token of a finished request, by the engine's clock."""
    times = getattr(getattr(output, "request_perf_metrics", None), "timing_metrics", None)
    if times is None:
        return None
    arrival, _, first, last = (nanoseconds(getattr(times, name)) for name in _TIMES)
    return (first - arrival) / 1e9, (last - arrival) / 1e9


def nanoseconds(value: Any) -> int:
    """A point of the engine's steady clock, which comes as a timedelta or in seconds."""
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1) * 1000
    return round(float(value) * 1e9)


def _perf_arrays(metrics: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    yield from _read(getattr(metrics, "kv_cache_metrics", None), _KV_CACHE)
    times = getattr(metrics, "timing_metrics", None)
    for name in _TIMES if times is not None else ():
        yield f"{name}_ns", np.array([nanoseconds(getattr(times, name))], np.int64)
    yield from _read(getattr(metrics, "speculative_decoding", None), _SPECULATION)


def _read(section: Any, names: Mapping[str, tuple[str, Any]]) -> Iterator[tuple[str, NDArray[Any]]]:
    """What the release has of a section; it leaves one out where nothing was drafted."""
    for output, (attribute, kind) in names.items():
        value = getattr(section, attribute, None)
        if value is not None:
            yield output, np.array([value], kind)


def _texts(texts: Iterator[str]) -> NDArray[Any]:
    return np.array([text.encode() for text in texts], dtype=object)
