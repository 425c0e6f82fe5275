"""Target and draft models of the same server, asked in TensorRT-LLM's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import numpy as np

from toolkit.errors import RunError
from toolkit.serving.bls import Draft, DraftSource, DraftUnavailableError, Target
from toolkit.serving.triton_io import ask, tensor, text_tensor
from toolkit.speculation.request import Request


def tokenize(text: str, max_tokens: int) -> list[int]:
    """The prompt's tokens, from `preprocessing`."""
    inputs = [text_tensor("QUERY", text), tensor("REQUEST_OUTPUT_LEN", [[max_tokens]], np.int32)]
    answer = ask("preprocessing", inputs, ["INPUT_ID"])
    return [int(token) for token in answer["INPUT_ID"].reshape(-1)]


class _Model:
    """One request's calls to one LLM model."""

    def __init__(self, model: str, request: Request) -> None:
        self._model, self._request = model, request
        self._id = uuid4().hex

    def _ask(
        self, tokens: Sequence[int], length: int, extra: Sequence[Any] = (), *, logits: bool = False
    ) -> dict[str, Any]:
        outputs = ["output_ids", "sequence_length", *(["generation_logits"] if logits else [])]
        inputs = [*self._inputs(tokens, length), *self._sampling(), *extra]
        return ask(self._model, inputs, outputs, request_id=self._id)

    def _inputs(self, tokens: Sequence[int], length: int) -> list[Any]:
        return [
            tensor("input_ids", [tokens], np.int32),
            tensor("input_lengths", [[len(tokens)]], np.int32),
            tensor("request_output_len", [[length]], np.int32),
            tensor("exclude_input_in_output", [[True]], np.bool_),
        ]

    def _sampling(self) -> list[Any]:
        sampling = self._request.sampling
        if sampling.greedy:
            return []
        return [
            tensor("temperature", [[sampling.temperature]], np.float32),
            tensor("runtime_top_k", [[sampling.top_k]], np.int32),
            tensor("runtime_top_p", [[sampling.top_p]], np.float32),
            tensor("seed", [[sampling.seed]], np.uint64),
        ]

    def release(self) -> None:
        """Let the sequence go that the model keeps under this request's id."""
        stop = tensor("stop", [[True]], np.bool_)
        with suppress(RunError):  # a model that is gone keeps nothing
            ask(self._model, [*self._inputs([0], 1), stop], [], request_id=self._id)


class RemoteTarget(_Model, Target):
    """`tensorrt_llm`."""

    def verify(self, tokens: Sequence[int], draft: Draft) -> list[int]:
        extra = []
        if draft.tokens:
            extra.append(tensor("draft_input_ids", [draft.tokens], np.int32))
        if draft.logits is not None:
            extra.append(tensor("draft_logits", draft.logits[None], np.float32))
        return _new_tokens(self._ask(tokens, len(draft.tokens) + 1, extra))

    def extend(self, tokens: Sequence[int], count: int) -> list[int]:
        stop = self._request.stop_tokens
        extra = [tensor("end_id", [list(stop)], np.int32)] if len(stop) == 1 else []
        return _new_tokens(self._ask(tokens, count, extra))


class RemoteDraft(_Model, DraftSource):
    """`tensorrt_llm_draft`. It never stops early: the target alone decides where the text ends."""

    def __init__(self, model: str, request: Request, *, with_logits: bool) -> None:
        super().__init__(model, request)
        self._with_logits = with_logits and not request.sampling.greedy

    def propose(self, tokens: Sequence[int], draft_len: int) -> Draft:
        wanted = tensor("return_generation_logits", [[self._with_logits]], np.bool_)
        try:
            answer = self._ask(tokens, draft_len, [wanted], logits=self._with_logits)
            return _draft(answer, draft_len)
        except (RunError, ValueError, LookupError) as error:
            raise DraftUnavailableError(f"no draft from {self._model}: {error}") from error


def _draft(answer: dict[str, Any], draft_len: int) -> Draft:
    """What a draft model said; ValueError or LookupError when that makes no sense."""
    drafted = tuple(_new_tokens(answer)[:draft_len])
    if not drafted or "generation_logits" not in answer:
        return Draft(drafted)
    logits = answer["generation_logits"]
    rows = logits.reshape(-1, logits.shape[-1])
    if len(rows) < len(drafted):
        raise ValueError(f"{len(rows)} rows of logits for {len(drafted)} draft tokens")
    return Draft(drafted, rows[-len(drafted) :])


def _new_tokens(answer: dict[str, Any]) -> list[int]:
    length = int(answer["sequence_length"].reshape(-1)[0])
    return [int(token) for token in answer["output_ids"].reshape(-1)[:length]]
