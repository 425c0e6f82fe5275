"""Target and draft models of the same server, asked in TensorRT-LLM's tensors.

Behind them are TensorRT-LLM's engines, or spectool's own model code, which understands the same
and a little more: it keeps a request's sequence under its id, and takes its random numbers from
seed and position. An engine restarts its generator at every call, so each call gets a seed of its
own: a draft must not be drawn with the numbers that accept it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from struct import pack
from typing import Any
from uuid import uuid4

import numpy as np

from toolkit.errors import CapacityError, RunError
from toolkit.serving.bls import Draft, DraftSource, DraftUnavailableError, Target
from toolkit.serving.llm_request import GUIDE_BEGINS
from toolkit.serving.triton_io import ask, tensor, text_tensor
from toolkit.speculation.request import Request
from toolkit.speculation.sampling import Role


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the LLM models understand."""

    seed: str = "seed"  # the input's name
    engines: bool = False  # TensorRT-LLM's own, not spectool's model code
    fast_logits: bool = False  # a draft's logits are a handle that the target redeems


OWN = Dialect()


def call_seed(seed: int, position: int, role: Role) -> int:
    """For one call to an engine that will choose tokens from absolute `position` on."""
    key = blake2b(pack("<QQQ", seed, position, role), digest_size=8, person=b"call").digest()
    return int.from_bytes(key, "little")


def tokenize(text: str, max_tokens: int) -> list[int]:
    """The prompt's tokens, from `preprocessing`."""
    inputs = [text_tensor("QUERY", text), tensor("REQUEST_OUTPUT_LEN", [[max_tokens]], np.int32)]
    answer = ask("preprocessing", inputs, ["INPUT_ID"])
    return [int(token) for token in answer["INPUT_ID"].reshape(-1)]


class _Model:
    """One request's calls to one LLM model."""

    role: Role

    def __init__(self, model: str, request: Request, dialect: Dialect = OWN) -> None:
        self._model, self._request, self._dialect = model, request, dialect
        # Nothing is kept in an engine under an id, and an id in use is refused.
        self._id = "" if dialect.engines else uuid4().hex

    def _ask(
        self, tokens: Sequence[int], length: int, extra: Sequence[Any] = (), *, logits: bool = False
    ) -> dict[str, Any]:
        outputs = ["output_ids", "sequence_length", *(["generation_logits"] if logits else [])]
        inputs = [*self._inputs(tokens, length), *self._sampling(len(tokens)), *extra]
        grammar = self._request.grammar
        if grammar is None:
            return ask(self._model, inputs, outputs, request_id=self._id)
        inputs.append(text_tensor("guided_decoding_guide_type", grammar.guide.type))
        inputs.append(text_tensor("guided_decoding_guide", grammar.guide.text))
        # Every call brings the whole text; upstream's inputs cannot say where the grammar began.
        begins = {GUIDE_BEGINS: len(self._request.prompt)}
        return ask(self._model, inputs, outputs, request_id=self._id, parameters=begins)

    def _inputs(self, tokens: Sequence[int], length: int) -> list[Any]:
        return [
            tensor("input_ids", [tokens], np.int32),
            tensor("input_lengths", [[len(tokens)]], np.int32),
            tensor("request_output_len", [[length]], np.int32),
            tensor("exclude_input_in_output", [[True]], np.bool_),
        ]

    def _sampling(self, position: int) -> list[Any]:
        sampling = self._request.sampling
        if sampling.greedy:
            return [tensor("runtime_top_k", [[1]], np.int32)]
        seed = sampling.seed
        if self._dialect.engines:
            seed = call_seed(seed, position, self.role)
        return [
            tensor("temperature", [[sampling.temperature]], np.float32),
            tensor("runtime_top_k", [[sampling.top_k]], np.int32),
            tensor("runtime_top_p", [[sampling.top_p]], np.float32),
            tensor(self._dialect.seed, [[seed]], np.uint64),
        ]

    def release(self) -> None:
        """Let the sequence go that the model keeps under this request's id."""
        if self._dialect.engines:
            return
        stop = tensor("stop", [[True]], np.bool_)
        with suppress(RunError, CapacityError):  # a model that is gone keeps nothing
            ask(self._model, [*self._inputs([0], 1), stop], [], request_id=self._id)


class RemoteTarget(_Model, Target):
    """`tensorrt_llm`."""

    role = Role.EMIT

    def verify(self, tokens: Sequence[int], draft: Draft) -> list[int]:
        extra = []
        if draft.tokens:
            extra.append(tensor("draft_input_ids", [draft.tokens], np.int32))
        if draft.logits is not None:
            extra.append(tensor("draft_logits", draft.logits[None], draft.logits.dtype))
        most = len(draft.tokens) + 1
        return self._checked(_new_tokens(self._ask(tokens, most, extra), tokens, most), most)

    def extend(self, tokens: Sequence[int], count: int) -> list[int]:
        stop = self._request.stop_tokens
        extra = [tensor("end_id", [list(stop)], np.int32)] if len(stop) == 1 else []
        return self._checked(_new_tokens(self._ask(tokens, count, extra), tokens, count), count)

    def _checked(self, emitted: list[int], most: int) -> list[int]:
        if len(emitted) > most:
            raise RunError(f"{self._model}: {len(emitted)} tokens, where {most} were asked for")
        return emitted


class RemoteDraft(_Model, DraftSource):
    """`tensorrt_llm_draft`. It never stops early: the target alone decides where the text ends."""

    role = Role.DRAFT

    def __init__(
        self, model: str, request: Request, dialect: Dialect = OWN, *, with_logits: bool
    ) -> None:
        super().__init__(model, request, dialect)
        self._with_logits = with_logits and not request.sampling.greedy

    def propose(self, tokens: Sequence[int], draft_len: int) -> Draft:
        wanted = tensor("return_generation_logits", [[self._with_logits]], np.bool_)
        try:
            answer = self._ask(tokens, draft_len, [wanted], logits=self._with_logits)
            return _draft(answer, tokens, draft_len, fast_logits=self._dialect.fast_logits)
        except (RunError, CapacityError, ValueError, LookupError) as error:
            raise DraftUnavailableError(f"no draft from {self._model}: {error}") from error


def _draft(
    answer: dict[str, Any], sent: Sequence[int], draft_len: int, *, fast_logits: bool = False
) -> Draft:
    """What a draft model said; ValueError or LookupError when that makes no sense."""
    drafted = tuple(_new_tokens(answer, sent, draft_len)[:draft_len])
    if not drafted or "generation_logits" not in answer:
        return Draft(drafted)
    logits = answer["generation_logits"]
    rows = logits.reshape(-1, logits.shape[-1])
    if fast_logits:
        return Draft(drafted, rows)  # one row, whose bits name the tensor: not to be touched
    if len(rows) < len(drafted):
        raise ValueError(f"{len(rows)} rows of logits for {len(drafted)} draft tokens")
    return Draft(drafted, rows[-len(drafted) :])


def _new_tokens(answer: dict[str, Any], sent: Sequence[int], most: int) -> list[int]:
    """What was added to `sent`, also by a model that repeats its input though told not to."""
    length = int(answer["sequence_length"].reshape(-1)[0])
    tokens = [int(token) for token in answer["output_ids"].reshape(-1)[:length]]
    if len(tokens) > most and tokens[: len(sent)] == list(sent):
        return tokens[len(sent) :]
    return tokens
