"""Is greedy text with speculation the text without it? First divergences, and what each one means.

A verify step feeds several tokens where plain decoding feeds one, so an engine may sum in another
order and round differently. Where two tokens were equally good up to that rounding, either text is
right; from there on they part. So every first divergence is asked: in one more forward pass over
the common text, how far does the worse of the two tokens lie below the best one? Within the
dtype's rounding it is a numerical tie, beyond it a bug. Plain decoding is run twice before
anything else: an engine that does not agree with itself cannot be tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import InputError
from toolkit.measure.run import EncodedPrompt
from toolkit.speculation.generation import GenerationLoop
from toolkit.speculation.interfaces import LanguageModel, Step
from toolkit.speculation.request import Output, Request

# How far two computations of one logit may lie apart, as a part of the row's largest |logit|: four
# times the rounding of the 16-bit types (2^-8, 2^-11). float32 differs by the order of sums over
# thousands of terms, 128 times its rounding (2^-24).
ROUNDING = {"bfloat16": 2.0**-6, "float16": 2.0**-9, "float32": 2.0**-17}

Verdict = Literal["numerical tie", "bug"]


@dataclass(frozen=True)
class Divergence:
    """The first token at which two texts of one prompt part."""

    domain: str
    prompt: str
    position: int  # of the output
    plain_token: int | None  # None: this text had ended
    other_token: int | None
    gap: float | None  # the best logit minus the worse of the two tokens; None without two tokens
    bound: float  # a gap up to here is rounding

    @property
    def verdict(self) -> Verdict:
        # A text that ends where the other goes on has no second token that rounding could excuse.
        return "bug" if self.gap is None or self.gap > self.bound else "numerical tie"


@dataclass(frozen=True)
class DomainCount:
    """What was compared in one domain; counts, so that domains add."""

    domain: str
    prompts: int
    tokens: int
    identical: int  # prompts whose two texts are one
    draft_tokens: int
    accepted_tokens: int
    verify_steps: int


@dataclass(frozen=True)
class EquivalenceReport:
    """Plain against plain, then plain against speculation."""

    dtype: str
    control: tuple[Divergence, ...]
    divergences: tuple[Divergence, ...]
    domains: tuple[DomainCount, ...]

    @property
    def bugs(self) -> list[Divergence]:
        return [d for d in (*self.control, *self.divergences) if d.verdict == "bug"]

    @property
    def tested(self) -> bool:
        """Something was drafted; otherwise both runs were plain decoding."""
        return any(domain.draft_tokens for domain in self.domains)

    @property
    def passed(self) -> bool:
        return self.tested and not self.bugs

    def conclusion(self) -> str:
        """One sentence for people."""
        if any(d.verdict == "bug" for d in self.control):
            return "plain decoding does not reproduce itself: fix the engine before speculation"
        if self.bugs:
            return f"speculation changes the text of {len(self.bugs)} prompt(s): this is a bug"
        if not self.tested:
            return "nothing was drafted, so nothing was tested; raise --max-tokens or --prompts"
        prompts = sum(domain.prompts for domain in self.domains)
        if not self.divergences:
            return f"greedy text with speculation equals plain text on all {prompts} prompts"
        return (
            f"lossless up to rounding: {prompts - len(self.divergences)} of {prompts} texts are "
            f"equal, the others part at numerical ties of {self.dtype}"
        )

    def to_json(self) -> dict[str, Any]:
        def described(found: Sequence[Divergence]) -> list[dict[str, Any]]:
            return [{**asdict(d), "verdict": d.verdict} for d in found]

        return {
            "passed": self.passed,
            "conclusion": self.conclusion(),
            "dtype": self.dtype,
            "control": described(self.control),
            "divergences": described(self.divergences),
            "domains": [asdict(domain) for domain in self.domains],
        }


def check_equivalence(
    target: LanguageModel,
    loop: Callable[[bool], GenerationLoop],  # True: with speculation
    prompts: Sequence[EncodedPrompt],  # those of one domain together
    *,
    dtype: str,
    max_tokens: int,
    stop_tokens: frozenset[int],
    batch: int = 4,
    advance: Callable[[float], None] = lambda prompts: None,
) -> EquivalenceReport:
    """Decode every prompt plainly, plainly again, and with speculation; ragged batches."""
    if dtype not in ROUNDING:
        raise InputError(f"dtype {dtype!r} is not one of {', '.join(ROUNDING)}")
    requests = [Request(prompt.tokens, max_tokens, stop_tokens=stop_tokens) for prompt in prompts]

    def outputs(speculate: bool) -> list[Output]:
        return list(_in_groups(loop(speculate), requests, batch, advance))

    def part(other: Sequence[Output]) -> tuple[Divergence, ...]:
        triples = zip(prompts, plain, other, strict=True)
        found = (_first_divergence(target, *triple, dtype=dtype) for triple in triples)
        return tuple(divergence for divergence in found if divergence)

    plain = outputs(False)
    control = part(outputs(False))
    speculative = outputs(True)
    return EquivalenceReport(
        dtype=dtype,
        control=control,
        divergences=part(speculative),
        domains=tuple(_count(prompts, plain, speculative)),
    )


def _in_groups(
    loop: GenerationLoop, requests: Sequence[Request], size: int, advance: Callable[[float], None]
) -> Iterator[Output]:
    for start in range(0, len(requests), size):
        group = requests[start : start + size]
        yield from loop.generate(group)
        advance(len(group))


def _count(
    prompts: Sequence[EncodedPrompt], plain: Sequence[Output], speculative: Sequence[Output]
) -> Iterator[DomainCount]:
    rows = zip(prompts, plain, speculative, strict=True)
    for domain, found in groupby(rows, key=lambda row: row[0].domain):
        pairs = [(off, on) for _, off, on in found]
        yield DomainCount(
            domain=domain,
            prompts=len(pairs),
            tokens=sum(len(off.tokens) for off, _ in pairs),
            identical=sum(off.tokens == on.tokens for off, on in pairs),
            draft_tokens=sum(on.stats.draft_tokens for _, on in pairs),
            accepted_tokens=sum(on.stats.accepted_tokens for _, on in pairs),
            verify_steps=sum(on.stats.verify_steps for _, on in pairs),
        )


def _first_divergence(
    target: LanguageModel, prompt: EncodedPrompt, plain: Output, other: Output, *, dtype: str
) -> Divergence | None:
    """Where two texts part, with the logits of a third computation as the judge."""
    if plain.tokens == other.tokens:
        return None
    longest = max(len(plain.tokens), len(other.tokens))
    ours, theirs = ([*o.tokens, *[None] * (longest - len(o.tokens))] for o in (plain, other))
    position = next(i for i in range(longest) if ours[i] != theirs[i])
    logits = _logits(target, [*prompt.tokens, *plain.tokens[:position]])
    pair = [token for token in (ours[position], theirs[position]) if token is not None]
    gap = float(logits.max() - logits[pair].min()) if len(pair) == 2 else None
    bound = ROUNDING[dtype] * float(np.abs(logits).max())
    return Divergence(
        prompt.domain, prompt.id, position, ours[position], theirs[position], gap, bound
    )


def _logits(target: LanguageModel, tokens: Sequence[int]) -> NDArray[np.float32]:  # [V]
    """What the target says after these tokens, read afresh."""
    seq = target.open()
    try:
        [output] = target.forward([Step(seq, np.asarray(tokens, dtype=np.int64))])
        logits: NDArray[np.float32] = output.logits[0]
        return logits
    finally:
        target.close(seq)
