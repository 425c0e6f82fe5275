"""A running server as a subject of `verify`: Triton's generate, or OpenAI's completions, over HTTP.

Where a server shows log-probabilities, texts are compared token by token and the gap at a
divergence is read from them. Elsewhere the characters are compared, and the gap is estimated: plain
decoding is asked again and again how the text goes on at a low temperature t, and of two ways that
came n and m times the logits lie t ln(n / m) apart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from json import load
from math import log, sqrt
from typing import Any, Literal

from toolkit.errors import InputError, RunError
from toolkit.measure.subject import Advance, Answer, Counts, Gap, Question, Subject, no_advance
from toolkit.serving.client import get, post
from toolkit.serving.load.endpoint import ENTRIES, LLMAPI
from toolkit.speculation.interfaces import SamplingParams

# Two units in the last place of a bfloat16 logit between 16 and 32.
TIE = 0.25
_TIMEOUT_S = 600.0
_TOP = 5  # log-probabilities of so many tokens: as many as OpenAI's API allows
_ASKED, _COLD = 64, 0.25  # samples at a divergence, and their temperature
_WORD = 12  # characters that a divergence may lie behind the beginning of its word
Tops = Sequence[Mapping[str, float]]  # by position: token -> log-probability


@dataclass(frozen=True)
class Reply:
    """What a server said."""

    text: str
    tokens: tuple[str, ...] | None = None  # None: it shows only text
    tops: Tops = ()
    counts: Counts | None = None


class Side(ABC):
    """One model of one server, speculating or not."""

    @abstractmethod
    def ask(self, question: Question) -> Reply:
        """One request; RunError says what the server said."""


class TritonSide(Side):
    """A text model with the tensors of TensorRT-LLM's BLS, ensemble or LLM API models."""

    def __init__(self, url: str, model: str, num_draft_tokens: int | None) -> None:
        self.model = model
        self._url = f"{url}/v2/models/{model}"
        described = get(self._url, _TIMEOUT_S)
        if described is None:
            raise InputError(f"{url}: there is no model {model!r}")
        self.inputs = {tensor["name"] for tensor in described.get("inputs", ())}
        if "text_input" not in self.inputs:
            raise InputError(f"{model} takes {', '.join(sorted(self.inputs))}: not a text model")
        self._words = {} if "max_tokens" in self.inputs else LLMAPI
        self._num_draft_tokens = num_draft_tokens
        if num_draft_tokens is not None and "num_draft_tokens" not in self.inputs:
            raise InputError(f"{model} has no input 'num_draft_tokens': leave --k out")

    @property
    def switches(self) -> bool:
        """Can a request turn speculation off?"""
        return "num_draft_tokens" in self.inputs

    def ask(self, question: Question) -> Reply:
        sampling = question.sampling
        fields: dict[str, Any] = {
            "text_input": question.text,
            "max_tokens": question.max_tokens,
            "exclude_input_in_output": True,
            "return_perf_metrics": True,
            "num_draft_tokens": self._num_draft_tokens,
        }
        if sampling.greedy:
            fields |= {"top_k": 1}
        else:
            fields |= {
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "seed": sampling.seed,
            }
        named = {self._words.get(name, name): value for name, value in fields.items()}
        body = {name: v for name, v in named.items() if v is not None and name in self.inputs}
        with post(f"{self._url}/generate", body, _TIMEOUT_S) as response:
            found = load(response)
        if "text_output" not in found:
            raise RunError(f"{self._url}: no text_output: {str(found)[:200]}")
        text = found["text_output"]
        drafted, accepted = (found.get(f"total_{kind}draft_tokens") for kind in ("", "accepted_"))
        counts = None
        if drafted is not None and accepted is not None:
            counts = Counts(draft_tokens=int(drafted), accepted_tokens=int(accepted))
        return Reply(text[0] if isinstance(text, list) else str(text), counts=counts)


class OpenAiSide(Side):
    """POST /v1/completions, as vLLM, SGLang, trtllm-serve and others serve it."""

    def __init__(self, url: str, model: str | None) -> None:
        self._url = f"{url}/v1/completions"
        listed = get(f"{url}/v1/models", _TIMEOUT_S)
        names = [str(entry["id"]) for entry in (listed or {}).get("data", ())]
        if not names or (model is not None and model not in names):
            raise InputError(
                f"{url}: no model {model or ''} (served: {', '.join(names) or 'none'})"
            )
        self.model = model or names[0]

    def ask(self, question: Question) -> Reply:
        sampling = question.sampling
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": question.text,
            "max_tokens": question.max_tokens,
            "temperature": sampling.temperature,
            "logprobs": _TOP,
        }
        if not sampling.greedy:
            # The API caps seeds at 63 bits; top_k is everybody's extension of it.
            body |= {"top_p": sampling.top_p, "seed": sampling.seed >> 32}
            body |= {"top_k": sampling.top_k} if sampling.top_k else {}
        with post(self._url, body, _TIMEOUT_S) as response:
            found = load(response)
        try:
            choice = found["choices"][0]
            text, shown = str(choice["text"]), choice.get("logprobs") or {}
        except (KeyError, IndexError, TypeError):
            raise RunError(f"{self._url}: no completion: {str(found)[:200]}") from None
        tokens, tops = shown.get("tokens"), shown.get("top_logprobs")
        if not tokens or not tops:
            return Reply(text)
        return Reply(text, tuple(map(str, tokens)), [dict(top or {}) for top in tops])


class ServedSubject(Subject):
    """Two sides, asked by `batch` clients at once."""

    def __init__(self, on: Side, off: Side, *, batch: int, tie: float, probe: Question) -> None:
        self._on, self._off, self._batch, self._tie = on, off, batch, tie
        self.rounding = f"up to {tie:g}"
        shown = [side.ask(probe).tokens is not None for side in (on, off)]
        self.unit: Literal["token", "character"] = "token" if all(shown) else "character"
        self._tops: dict[Question, Tops] = {}

    def answer(
        self, questions: Sequence[Question], *, speculate: bool, advance: Advance = no_advance
    ) -> list[Answer]:
        side, answers = self._on if speculate else self._off, []
        with ThreadPoolExecutor(self._batch) as pool:
            for question, reply in zip(questions, pool.map(side.ask, questions), strict=True):
                if not speculate and question.sampling.greedy:
                    self._tops.setdefault(question, reply.tops)
                units = reply.tokens if self.unit == "token" else None
                answers.append(Answer(tuple(units or reply.text), reply.text, reply.counts))
                advance(1)
        return answers

    def gap(
        self,
        question: Question,
        common: Sequence[Hashable],
        pair: tuple[Hashable | None, Hashable | None],
    ) -> Gap | None:
        tops, one, two = self._tops.get(question, ()), *pair
        if one is None or two is None or len(common) >= len(tops) or not tops[len(common)]:
            # An end is no token here; of a token that is not shown its first character is.
            first = [str(unit or "")[:1] for unit in pair]
            return self._estimated("".join(map(str, common)), question, *first)
        top = tops[len(common)]
        # A token that is not among the best lies at least as far below as the last of them.
        lowest = min(top.values())
        worse = min(top.get(str(one), lowest), top.get(str(two), lowest))
        return Gap(max(top.values()) - worse, self._tie)

    def _estimated(self, common: str, question: Question, one: str, two: str) -> Gap | None:
        """The least that the gap is for certain: two standard errors below its estimate."""
        # Tokens begin with words: go back to where the server cannot have been inside one.
        start = max(common.rfind(" "), common.rfind("\n"), len(common) - _WORD, 0)
        tail = common[start:]
        asked = [
            replace(
                question,
                text=question.text + common[:start],
                max_tokens=len(tail) + _WORD,
                sampling=SamplingParams(temperature=_COLD, seed=(1 + number) << 32),
            )
            for number in range(_ASKED)
        ]
        texts = [answer.text for answer in self.answer(asked, speculate=False)]
        ways = [text[len(tail) :][:1] for text in texts if text.startswith(tail)]
        if len(ways) < _ASKED / 4:
            return (
                None  # it goes on elsewhere: the server does not read its own text as it wrote it
            )
        most = max(ways.count(way) for way in ways)
        few = min(ways.count(one), ways.count(two))
        error = sqrt(1 / (most + 0.5) + 1 / (few + 0.5))
        least = _COLD * (log((most + 0.5) / (few + 0.5)) - 2 * error)
        return Gap(max(least, 0.0), self._tie)


def open_subject(
    url: str,
    plain: str | None,
    *,
    model: str | None,
    k: int | None,
    batch: int,
    tie: float = TIE,
) -> ServedSubject:
    """The server at `url`; `plain` is one that decodes the same model without speculation."""
    on = _side(url, model, k)
    if plain is not None:
        off = _side(plain, None, None)
    elif isinstance(on, TritonSide) and on.switches:
        off = TritonSide(_base(url), on.model, 0)
    else:
        raise InputError(
            f"{url}: no request can turn its speculation off; start the same model without "
            "speculation and name it with --plain URL"
        )
    probe = Question(domain="probe", id="probe", text="Once upon a time", max_tokens=2)
    return ServedSubject(on, off, batch=batch, tie=tie, probe=probe)


def _side(url: str, model: str | None, k: int | None) -> Side:
    base = _base(url)
    if get(f"{base}/v2", _TIMEOUT_S):
        return TritonSide(base, model or _entry(base), k)
    if k is not None:
        raise InputError(f"--k {k}: {url} drafts what it was started with; leave it out")
    return OpenAiSide(base, model)


def _base(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


def _entry(base: str) -> str:
    """The model that clients are meant to ask."""
    with post(f"{base}/v2/repository/index", {"ready": True}, _TIMEOUT_S) as response:
        ready = [str(entry["name"]) for entry in load(response)]
    found = [name for name in ENTRIES if name in ready]
    if not found:
        raise InputError(f"{base}: which model? --model NAME (ready: {', '.join(ready) or 'none'})")
    return found[0]
