"""A request for text as it comes over the wire, checked: every problem is named at once."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import InputError
from toolkit.recipe.guided import GuideType
from toolkit.speculation.grammar import Grammar, Guide
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.request import GREEDY, Request

Arrays = Mapping[str, NDArray[Any]]
MAX_STOP_WORDS, MAX_STOP_WORD_LENGTH = 64, 1024
MAX_GUIDE_LENGTH = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """The inputs of `tensorrt_llm_bls`; without temperature the text is greedy."""

    text: str
    max_tokens: int
    stop_words: tuple[str, ...] = ()
    exclude_input: bool = True
    end_id: int | None = None  # None: the tokenizer's end tokens; negative: never stop early
    sampling: SamplingParams = GREEDY
    return_perf_metrics: bool = False
    return_num_output_tokens: bool = False
    stream: bool = False
    num_draft_tokens: int | None = None  # None: as the recipe says; 0: plain decoding
    use_draft_logits: bool | None = None  # None: as the deployment is made
    guide: Guide | None = None  # None: as the recipe says

    def tokens(
        self, prompt: Sequence[int], eos_ids: frozenset[int], grammar: Grammar | None = None
    ) -> Request:
        """The same request for the loop, once its text is tokens and its guide is compiled."""
        end = eos_ids if self.end_id is None else frozenset({self.end_id} - {-1})
        return Request(
            prompt=tuple(prompt),
            max_tokens=self.max_tokens,
            sampling=self.sampling,
            stop_tokens=end,
            stop_strings=self.stop_words,
            draft_len=self.num_draft_tokens,
            grammar=grammar,
        )


class Fields:
    """Reads single values out of request tensors and remembers what was wrong with them."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        self.problems: list[str] = []

    def integer(self, name: str, low: int, high: int) -> int | None:
        value = self._single(name)
        if value is None:
            return None
        if not isinstance(value, np.integer) or not low <= int(value) <= high:
            self.problems.append(f"{name}: {value}, expected a whole number from {low} to {high}")
            return None
        return int(value)

    def real(self, name: str, low: float, high: float) -> float | None:
        value = self._single(name)
        if value is None:
            return None
        number = float(str(value))  # 0.7, not the 0.699999988 that its 32 bits stand for
        if not (math.isfinite(number) and low <= number <= high):
            self.problems.append(f"{name}: {number:g}, expected {low:g} to {high:g}")
            return None
        return number

    def flag(self, name: str, default: bool) -> bool:
        value = self._single(name)
        return default if value is None else bool(value)

    def optional_flag(self, name: str) -> bool | None:
        value = self._single(name)
        return None if value is None else bool(value)

    def text(self, name: str) -> str | None:
        value = self._single(name)
        return None if value is None else self._decode(name, value)

    def texts(self, name: str) -> tuple[str, ...]:
        if name not in self._arrays:
            return ()
        decoded = (self._decode(name, value) for value in self._arrays[name].reshape(-1))
        return tuple(text for text in decoded if text)

    def _single(self, name: str) -> Any:
        if name not in self._arrays:
            return None
        values = self._arrays[name].reshape(-1)
        if len(values) != 1:
            self.problems.append(f"{name}: {len(values)} values, expected one (batch size is 1)")
            return None
        return values[0]

    def _decode(self, name: str, value: Any) -> str | None:
        if isinstance(value, str):
            return value
        try:
            return bytes(value).decode()
        except UnicodeDecodeError as error:
            self.problems.append(f"{name}: not UTF-8: {error.reason} at byte {error.start}")
            return None


def sampling_params(fields: Fields, top_k: str = "top_k", top_p: str = "top_p") -> SamplingParams:
    """temperature 0 or absent is greedy; without a seed the request draws one for itself."""
    temperature = fields.real("temperature", 0.0, 100.0) or 0.0
    seed = fields.integer("seed", 0, 2**64 - 1)
    return SamplingParams(
        temperature=temperature,
        top_k=fields.integer(top_k, 0, 2**31 - 1) or 0,
        top_p=fields.real(top_p, 1e-6, 1.0) or 1.0,
        seed=secrets.randbits(63) if seed is None else seed,
    )


def text_request(arrays: Arrays, *, max_draft_len: int) -> TextRequest:
    """The request in these tensors, or InputError with all that is wrong with it."""
    fields = Fields(arrays)
    text = fields.text("text_input")
    max_tokens = fields.integer("max_tokens", 1, 2**31 - 1)
    num_draft_tokens = fields.integer("num_draft_tokens", 0, 2**31 - 1)
    if num_draft_tokens is not None and num_draft_tokens > max_draft_len:
        fields.problems.append(_too_many_draft_tokens(num_draft_tokens, max_draft_len))
    stop_words = fields.texts("stop_words")
    if len(stop_words) > MAX_STOP_WORDS:
        fields.problems.append(f"stop_words: {len(stop_words)}, at most {MAX_STOP_WORDS}")
    if any(len(word) > MAX_STOP_WORD_LENGTH for word in stop_words):
        fields.problems.append(f"stop_words: longer than {MAX_STOP_WORD_LENGTH} characters")
    request = TextRequest(
        text=text or "",
        max_tokens=max_tokens or 1,
        stop_words=stop_words,
        exclude_input=fields.flag("exclude_input_in_output", True),
        end_id=fields.integer("end_id", -1, 2**31 - 1),
        sampling=sampling_params(fields),
        return_perf_metrics=fields.flag("return_perf_metrics", False),
        return_num_output_tokens=fields.flag("return_num_output_tokens", False),
        stream=fields.flag("stream", False),
        num_draft_tokens=num_draft_tokens,
        use_draft_logits=fields.optional_flag("use_draft_logits"),
        guide=guide_in(fields),
    )
    if fields.problems:
        raise InputError("; ".join(fields.problems))
    return request


def guide_in(fields: Fields) -> Guide | None:
    """The grammar that comes with a request, in TensorRT-LLM's two inputs."""
    name = "guided_decoding_guide"
    type, text = fields.text(f"{name}_type"), fields.text(name)
    known = {known.type: known for known in map(Guide, get_args(GuideType))}
    if not type:
        if text:
            fields.problems.append(f"{name}: without {name}_type ({', '.join(known)})")
        return None
    if type not in known:
        fields.problems.append(f"{name}_type: {type!r}, expected one of {', '.join(known)}")
        return None
    if len(text or "") > MAX_GUIDE_LENGTH:
        fields.problems.append(f"{name}: longer than {MAX_GUIDE_LENGTH} characters")
    return replace(known[type], text=text or "")


def _too_many_draft_tokens(wanted: int, most: int) -> str:
    if most == 0:
        return f"num_draft_tokens: {wanted}, but this deployment has no drafter; leave it out"
    return f"num_draft_tokens: {wanted}, at most {most} (the recipe's max_draft_len)"
