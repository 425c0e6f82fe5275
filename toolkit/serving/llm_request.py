"""The tensors of one request to an LLM model, checked and turned into a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.serving.calls import Call
from toolkit.serving.text_request import Arrays, Fields, guide_in, sampling_params
from toolkit.speculation.grammar import Guide

# A parameter of the request: how many of its input tokens come before the text that a grammar
# rules. Without it, as for TensorRT-LLM's own model, all of them do.
GUIDE_BEGINS = "guided_decoding_begins"


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmRequest:
    """A call, how its answer should look, and what was wrong with it."""

    call: Call
    with_input: bool | None  # None: as the model is configured
    with_counts: bool
    stop: bool  # not a call: end the one with this request id
    guide: Guide | None = None  # of the call, not yet compiled
    problems: list[str] = field(default_factory=list)


def llm_request(
    arrays: Arrays, request_id: str, parameters: Mapping[str, Any] | None = None
) -> LlmRequest:
    fields = Fields(arrays)
    end_id = fields.integer("end_id", -1, 2**31 - 1)
    excluded = fields.flag("exclude_input_in_output", False)
    if fields.flag("streaming", False):
        fields.problems.append("streaming: one response is all there is; stream from the BLS model")
    input_ids = _input_ids(arrays, fields)
    begins = (parameters or {}).get(GUIDE_BEGINS, len(input_ids))
    if not isinstance(begins, int) or not 0 <= begins <= len(input_ids):
        fields.problems.append(f"{GUIDE_BEGINS}: {begins!r}, expected 0 to {len(input_ids)}")
    call = Call(
        input_ids=input_ids,
        guide_begins=begins,
        request_output_len=fields.integer("request_output_len", 1, 2**31 - 1) or 1,
        sampling=sampling_params(fields, "runtime_top_k", "runtime_top_p"),
        draft_input_ids=tuple(_integers(arrays, "draft_input_ids")),
        draft_logits=_rows(arrays, "draft_logits"),
        end_ids=frozenset() if end_id is None else frozenset({end_id} - {-1}),
        stop_sequences=_stop_sequences(arrays, fields),
        min_tokens=fields.integer("min_tokens", 0, 2**31 - 1) or 0,
        return_logits=fields.flag("return_generation_logits", False),
        request_id=request_id,
    )
    return LlmRequest(
        call=call,
        with_input=not excluded if "exclude_input_in_output" in arrays else None,
        with_counts=fields.flag("return_perf_metrics", False),
        stop=fields.flag("stop", False),
        guide=guide_in(fields),
        problems=fields.problems,
    )


def _input_ids(arrays: Arrays, fields: Fields) -> tuple[int, ...]:
    """The first input_lengths of input_ids."""
    ids = _integers(arrays, "input_ids")
    length = fields.integer("input_lengths", 0, 2**31 - 1)
    if length is not None and length > len(ids):
        fields.problems.append(f"input_lengths: {length}, but input_ids has {len(ids)} tokens")
    return tuple(ids[:length])


def _integers(arrays: Arrays, name: str) -> list[int]:
    return [int(value) for value in arrays[name].reshape(-1)] if name in arrays else []


def _rows(arrays: Arrays, name: str) -> NDArray[np.float32] | None:  # [drafted, V]
    if name not in arrays:
        return None
    rows: NDArray[Any] = arrays[name]
    return rows.reshape(-1, rows.shape[-1]).astype(np.float32, copy=False)


def _stop_sequences(arrays: Arrays, fields: Fields) -> tuple[tuple[int, ...], ...]:
    """[2, N]: tokens of all words one after the other; where each word ends, filled with -1."""
    if "stop_words_list" not in arrays:
        return ()
    tokens, ends = arrays["stop_words_list"].reshape(2, -1).tolist()
    ends = [end for end in ends if end > 0]
    starts = [0, *ends]
    if starts != sorted(set(starts)) or starts[-1] > len(tokens):
        fields.problems.append(f"stop_words_list: offsets {ends} do not rise within {len(tokens)}")
        return ()
    return tuple(tuple(tokens[start:end]) for start, end in zip(starts[:-1], ends, strict=True))
