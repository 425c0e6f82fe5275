"""Ask the `llmapi` model over HTTP, ours or upstream's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from toolkit.errors import RunError
from toolkit.serving.client import Answer, Ask, post
from toolkit.serving.llmapi.responses import number

# What an Ask calls otherwise. Stop tokens and draft lengths are not the client's here.
_NAMES = {
    "text_input": "text_input",
    "stream": "streaming",
    "stop_words": "sampling_param_stop",
    **{
        name: f"sampling_param_{name}"
        for name in ("max_tokens", "temperature", "top_k", "top_p", "seed", "return_perf_metrics")
    },
}


def inputs_of(ask: Ask) -> dict[str, Any]:
    """The inputs of the request; what the model has no word for is left out."""
    return {_NAMES[name]: value for name, value in ask.inputs().items() if name in _NAMES}


def generate(http: str, model: str, ask: Ask, *, timeout_s: float = 600.0) -> Answer:
    """One request, one response, also of a model that could stream."""
    inputs = inputs_of(ask) | {"streaming": False}
    with post(f"{http}/v2/models/{model}/generate", inputs, timeout_s) as response:
        return answer_of(json.load(response))


def generate_stream(
    http: str, model: str, ask: Ask, *, timeout_s: float = 600.0
) -> Iterator[Answer]:
    """Responses as they come; closing the iterator cancels."""
    inputs = inputs_of(ask) | {"streaming": True}
    with post(f"{http}/v2/models/{model}/generate_stream", inputs, timeout_s) as response:
        for line in response:
            if line.startswith(b"data:"):
                yield answer_of(json.loads(line[5:]))


def answer_of(fields: dict[str, Any]) -> Answer:
    """Figures come as numbers from our model and as text from upstream's."""
    if "error" in fields:
        raise RunError(str(fields["error"]))
    found = {
        name: number(fields[name])
        for name in ("acceptance_rate", "total_accepted_draft_tokens", "total_draft_tokens")
        if fields.get(name) is not None
    }
    accepted, drafted = (
        int(found[name]) if name in found else None
        for name in ("total_accepted_draft_tokens", "total_draft_tokens")
    )
    return Answer(str(fields["text_output"]), found.get("acceptance_rate"), accepted, drafted)
