"""The target's own outputs, generated once and kept in the store: every trace starts from them.

They are written in drafted passes. Exact arithmetic writes the same text without; in bfloat16 a
pass of one token rounds otherwise than a pass of several, and a fifth of the texts of a small model
soon part at a near tie, so that plain decoding's texts would foretell drafts for texts that
speculation does not write (it writes the same ones for every draft length and batch size).

outputs/<digest>/outputs.jsonl    a line per prompt: {"tokens": [...], "finish": "length",
                                  "probs": [...]}; probs: the target's, null when greedy
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.measure.run import EncodedPrompt, sampling_of
from toolkit.recipe.schema import Sampling
from toolkit.speculation.generation import GenerationLoop
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.request import Request
from toolkit.speculation.trace import TracedText
from toolkit.store import Store

OUTPUTS_VERSION = 2
DRAFT_LEN = 1  # enough for passes of several tokens, and cheap where drafts seldom stand
_FILE = "outputs.jsonl"

# Of a prompt and each token of its output, under this sampling.
TokenProbs = Callable[[Sequence[int], Sequence[int], SamplingParams], NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the outputs depend on, apart from the prompts."""

    engine: Mapping[str, Any]  # digests of the target's engine and tokenizer, and the backend
    sampling: Sampling
    max_tokens: int
    stop_tokens: frozenset[int]

    def spec(self, prompts: Sequence[EncodedPrompt]) -> dict[str, Any]:
        """What the store's digest is taken over. Seeds come from domains and ids."""
        return {
            "outputs_version": OUTPUTS_VERSION,
            **self.engine,
            "sampling": self.sampling.model_dump(mode="json"),
            "max_tokens": self.max_tokens,
            "stop_tokens": sorted(self.stop_tokens),
            "prompts": [[p.domain, p.id, list(p.tokens)] for p in prompts],
        }


@dataclass(frozen=True)
class Outputs:
    """Texts in the prompts' order."""

    texts: list[TracedText]
    cached: bool
    generated_tokens: int  # 0 when cached


def target_outputs(
    loop: Callable[[], GenerationLoop],  # drafts
    token_probs: TokenProbs,  # the target's
    prompts: Sequence[EncodedPrompt],
    wanted: Wanted,
    store: Store,
    *,
    batch: int,
    advance: Callable[[float], None] = lambda prompts: None,
) -> Outputs:
    """From the store, or generated now in batches; the longest prompts together."""

    def build(directory: Path) -> None:
        lines = _generate(loop(), token_probs, prompts, wanted, batch, advance)
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (directory / _FILE).write_text(text, encoding="utf-8")

    entry = store.publish("outputs", wanted.spec(prompts), build)
    lines = [json.loads(line) for line in (entry.path / _FILE).read_text("utf-8").splitlines()]
    texts = [
        TracedText(
            prompt.tokens,
            tuple(line["tokens"]),
            sampling_of(prompt, wanted.sampling),
            None if line["probs"] is None else np.array(line["probs"]),
        )
        for prompt, line in zip(prompts, lines, strict=True)
    ]
    made = 0 if entry.cached else sum(len(text.output) for text in texts)
    return Outputs(texts, entry.cached, made)


def _generate(
    loop: GenerationLoop,
    token_probs: TokenProbs,
    prompts: Sequence[EncodedPrompt],
    wanted: Wanted,
    batch: int,
    advance: Callable[[float], None],
) -> Iterator[dict[str, Any]]:
    """One entry per prompt, in order."""
    lines: dict[int, dict[str, Any]] = {}
    order = sorted(range(len(prompts)), key=lambda place: len(prompts[place].tokens))
    for start in range(0, len(order), batch):
        places = order[start : start + batch]
        requests = [_request(prompts[place], wanted) for place in places]
        for place, request, output in zip(places, requests, loop.generate(requests), strict=True):
            probs = None
            if not request.sampling.greedy:
                probs = token_probs(request.prompt, output.tokens, request.sampling).tolist()
            lines[place] = {"tokens": output.tokens, "finish": output.finish_reason, "probs": probs}
        advance(len(places))
    return (lines[place] for place in range(len(prompts)))


def _request(prompt: EncodedPrompt, wanted: Wanted) -> Request:
    return Request(
        prompt.tokens,
        wanted.max_tokens,
        sampling_of(prompt, wanted.sampling),
        stop_tokens=wanted.stop_tokens,
        draft_len=DRAFT_LEN,
    )
