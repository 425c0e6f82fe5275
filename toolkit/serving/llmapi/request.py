"""A request to the `llmapi` model as it comes over the wire, checked: every problem at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from toolkit.errors import InputError
from toolkit.serving.text_request import MAX_STOP_WORD_LENGTH, MAX_STOP_WORDS, Arrays, Fields

_PREFIX = "sampling_param_"
_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmRequest:
    """`sampling` holds the keywords of SamplingParams; what a client left out is left out."""

    text: str
    sampling: dict[str, Any] = field(default_factory=dict)
    streaming: bool = False
    perf_metrics: bool = False
    finish_reason: bool = False
    stop_reason: bool = False
    cumulative_logprob: bool = False


def wants_stop(arrays: Arrays) -> bool:
    """Whether the request is there to end another one of the same id."""
    return Fields(arrays).flag("stop", False)


def llm_request(arrays: Arrays, *, decoupled: bool) -> LlmRequest:
    """The request in these tensors, or InputError with all that is wrong with it."""
    fields = Fields(arrays)
    text = fields.text("text_input")
    if text == "":
        fields.problems.append("text_input: empty")
    streaming = fields.flag("streaming", False)
    if streaming and not decoupled:
        fields.problems.append(
            "streaming: this deployment gives one response to a request "
            "(the recipe's serve.pytorch.decoupled)"
        )
    perf_metrics = fields.flag(f"{_PREFIX}return_perf_metrics", False)
    logprob = fields.flag("return_cumulative_logprob", False)
    sampling = _sampling(fields)
    if logprob:
        sampling["logprobs"] = 1  # without them nothing is cumulated
    request = LlmRequest(
        text=text or "",
        sampling=sampling,
        streaming=streaming,
        perf_metrics=perf_metrics,
        finish_reason=fields.flag("return_finish_reason", False),
        stop_reason=fields.flag("return_stop_reason", False),
        cumulative_logprob=logprob,
    )
    if fields.problems:
        raise InputError("; ".join(fields.problems))
    return request


def _sampling(fields: Fields) -> dict[str, Any]:
    """Keywords of SamplingParams. The counts are always asked for: /metrics adds them up."""
    found = {
        "best_of": fields.integer(f"{_PREFIX}best_of", 1, 1024),
        "temperature": fields.real(f"{_PREFIX}temperature", 0.0, 100.0),
        "top_k": fields.integer(f"{_PREFIX}top_k", 0, _LARGEST),
        "top_p": fields.real(f"{_PREFIX}top_p", 0.0, 1.0),
        "frequency_penalty": _penalty(fields, "frequency_penalty"),
        "presence_penalty": _penalty(fields, "presence_penalty"),
        "max_tokens": fields.integer(f"{_PREFIX}max_tokens", 1, _LARGEST),
        "stop": _stop(fields),
        "seed": fields.integer(f"{_PREFIX}seed", 0, 2**64 - 1),
        "exclude_input_from_output": fields.optional_flag(f"{_PREFIX}exclude_input_from_output"),
        "return_perf_metrics": True,
    }
    return {name: value for name, value in found.items() if value is not None}


def _penalty(fields: Fields, name: str) -> float | None:
    return fields.real(_PREFIX + name, -math.inf, math.inf)


def _stop(fields: Fields) -> list[str] | None:
    name = f"{_PREFIX}stop"
    words = fields.texts(name)
    if len(words) > MAX_STOP_WORDS:
        fields.problems.append(f"{name}: {len(words)}, at most {MAX_STOP_WORDS}")
    if any(len(word) > MAX_STOP_WORD_LENGTH for word in words):
        fields.problems.append(f"{name}: longer than {MAX_STOP_WORD_LENGTH} characters")
    return list(words) or None
