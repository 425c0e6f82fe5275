"""A small exact engine to verify, and bugs to plant in it.

The vocabulary has 24 tokens, so that a few hundred sampled texts show a distribution sharply; the
draft is the target plus noise. Every bug is one that a real implementation has had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

from tests.tiny import hf_config, hf_tensors, noisy, write_checkpoint
from toolkit.backends.cpu.backend import CpuBackend
from toolkit.backends.cpu.model import CpuModel
from toolkit.checkpoint.convert import convert
from toolkit.checkpoint.source import open_source
from toolkit.engine.cpu import build_cpu_engine
from toolkit.measure.subject import Answer, EngineSubject, Question, no_advance
from toolkit.measure.verification import Plan, Verification, run
from toolkit.recipe.schema import EngineLimits, ModelSpec
from toolkit.speculation.draft_length import Fixed
from toolkit.speculation.drafters.draft_target import DraftTargetDrafter
from toolkit.speculation.interfaces import DraftRequest, Proposal, SamplingParams
from toolkit.speculation.loop import SpeculativeLoop
from toolkit.speculation.sampling import draw
from toolkit.speculation.verify import verify, verify_greedy

VOCAB, DRAFT_LEN, TEMPERATURE = 24, 3, 0.4
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
# A head with a reduced vocabulary: draft token i is the target's token i + D2T[i].
KEPT = np.array([0, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 16, 17, 19, 20, 21, 22, 23])
D2T = KEPT - np.arange(len(KEPT))


class SmallEngine:
    """Target and draft on the embedded engine, float32."""

    def __init__(self, directory: Path) -> None:
        self.target = _build(directory / "target", noise=0.0)
        self.draft = _build(directory / "draft", noise=0.1)
        self.plain: dict[tuple[Question, ...], list[Answer]] = {}


def _build(directory: Path, noise: float) -> CpuModel:
    tensors = noisy(hf_tensors(hf_config("llama", **SMALL), scale=0.35), noise)
    source = write_checkpoint(directory / "hf", "llama", tensors=tensors, **SMALL)
    spec = ModelSpec(checkpoint=str(source), dtype="float32")
    convert(open_source(spec.checkpoint), directory / "checkpoint", spec)
    (directory / "engine").mkdir()
    limits = EngineLimits(max_batch_size=64, max_input_len=32, max_seq_len=128)
    build_cpu_engine(directory / "checkpoint", directory / "engine", limits)
    return CpuBackend().load(directory / "engine", threads=1)


class FakeHead:
    """The draft as a head with a reduced vocabulary would show it; `d2t` maps its tokens."""

    def __init__(self, draft: CpuModel, d2t: np.ndarray = D2T) -> None:
        self._draft, self._tokens = draft, np.arange(len(d2t)) + d2t

    def __getattr__(self, name: str):
        return getattr(self._draft, name)

    def forward(self, steps):
        outputs = self._draft.forward(steps)
        for output in outputs:
            reduced = output.logits[:, KEPT]
            output.logits[:] = -np.inf
            output.logits[:, self._tokens] = reduced
        return outputs


class ChangedProbs(DraftTargetDrafter):
    """Says of its drafts that they come from another distribution than they do."""

    def __init__(self, draft, change: Callable[[np.ndarray, SamplingParams], np.ndarray]) -> None:
        super().__init__(draft)
        self._change = change

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [
            proposal
            if proposal.probs is None
            else replace(proposal, probs=self._change(proposal.probs, request.sampling))
            for request, proposal in zip(requests, super().propose(requests), strict=True)
        ]


class RememberingSubject(EngineSubject):
    """Plain samples are the same whatever is planted in speculation: they are drawn once."""

    def __init__(self, engine: SmallEngine, loop) -> None:
        super().__init__(engine.target, loop, dtype="float32", stop_tokens=frozenset(), batch=64)
        self._plain = engine.plain

    def answer(self, questions, *, speculate, advance=no_advance):
        if speculate or questions[0].sampling.greedy:
            return super().answer(questions, speculate=speculate, advance=advance)
        if tuple(questions) not in self._plain:
            self._plain[tuple(questions)] = super().answer(questions, speculate=False)
        return self._plain[tuple(questions)]


Draft = Callable[[CpuModel], DraftTargetDrafter]


@contextmanager
def _verifying(sampled, greedy) -> Iterator[None]:
    with (
        patch("toolkit.speculation.steps.verify", sampled),
        patch("toolkit.speculation.steps.verify_greedy", greedy),
    ):
        yield


def _one_too_many(draft, draft_probs, target, accept, emit):
    tokens, accepted = verify(draft, draft_probs, target, accept, emit)
    if accepted == len(draft):
        return tokens, accepted
    following = draw(target[accepted + 1], emit[accepted + 1])
    return [*draft[: accepted + 1], following], accepted + 1


def _one_too_many_greedy(draft, target):
    tokens, accepted = verify_greedy(draft, target)
    if accepted == len(draft):
        return tokens, accepted
    return [*draft[: accepted + 1], target[accepted + 1]], accepted + 1


def _bonus_of_another_row(draft, draft_probs, target, accept, emit):
    tokens, accepted = verify(draft, draft_probs, target, accept, emit)
    if not draft or accepted < len(draft):
        return tokens, accepted
    return [*draft, draw(target[accepted - 1], emit[accepted])], accepted


def _bonus_of_another_row_greedy(draft, target):
    tokens, accepted = verify_greedy(draft, target)
    if not draft or accepted < len(draft):
        return tokens, accepted
    return [*draft, target[accepted - 1]], accepted


def _in_draft_ids(probs: np.ndarray, sampling: SamplingParams) -> np.ndarray:
    """The draft tokens are mapped to the target's, the distributions are not."""
    moved = np.zeros_like(probs)
    moved[:, : len(KEPT)] = probs[:, KEPT]
    return moved


def _without_temperature(probs: np.ndarray, sampling: SamplingParams) -> np.ndarray:
    """softmax(logits) from softmax(logits / temperature)."""
    plain = probs**sampling.temperature
    return plain / plain.sum(axis=1, keepdims=True)


def _nothing(engine: SmallEngine) -> AbstractContextManager[None]:
    return nullcontext()


# Bug -> (how the loop is broken, how the drafter is made).
Broken = tuple[Callable[[SmallEngine], AbstractContextManager[object]], Draft]
CORRECT: dict[str, Broken] = {
    "correct": (_nothing, DraftTargetDrafter),
    "correct, reduced vocabulary": (_nothing, lambda draft: DraftTargetDrafter(FakeHead(draft))),
}
BUGS: dict[str, Broken] = {
    "accept rule off by one": (
        lambda engine: _verifying(_one_too_many, _one_too_many_greedy),
        DraftTargetDrafter,
    ),
    "KV not rolled back": (
        lambda engine: patch.object(engine.target, "truncate", lambda seq, length: None),
        DraftTargetDrafter,
    ),
    "bonus token from the wrong row": (
        lambda engine: _verifying(_bonus_of_another_row, _bonus_of_another_row_greedy),
        DraftTargetDrafter,
    ),
    "d2t ignored": (
        _nothing,
        lambda draft: DraftTargetDrafter(FakeHead(draft, d2t=np.zeros_like(D2T))),
    ),
    "d2t ignored in the draft's distribution": (
        _nothing,
        lambda draft: ChangedProbs(FakeHead(draft), _in_draft_ids),
    ),
    "temperature applied to p only": (
        _nothing,
        lambda draft: ChangedProbs(draft, _without_temperature),
    ),
}


def plan(samples: int, *, seed: int = 0, alpha: float = 0.001, texts: int = 12) -> Plan:
    """Short greedy texts and four sampled prompts."""
    rng = np.random.default_rng(3)  # prompts are the same whatever the seed
    prompts = [tuple(rng.integers(2, VOCAB, 4).tolist()) for _ in range(texts)]
    greedy = [
        Question(domain="small", id=str(i), text="", tokens=prompt, max_tokens=20)
        for i, prompt in enumerate(prompts)
    ]
    sampling = SamplingParams(TEMPERATURE, seed=seed)
    sampled = [replace(q, max_tokens=16, sampling=sampling) for q in greedy[:4]]
    return Plan(greedy=greedy, sampled=sampled, samples=samples, alpha=alpha)


def verified(engine: SmallEngine, broken: Broken, asked: Plan) -> Verification:
    """What `verify` says about the engine with the bug in it."""
    plant, drafter = broken

    def loop(speculate: bool) -> SpeculativeLoop:
        drafting = drafter(engine.draft) if speculate else None
        return SpeculativeLoop(engine.target, drafting, Fixed(DRAFT_LEN if speculate else 0))

    with plant(engine):
        return run(RememberingSubject(engine, loop), asked, advance=no_advance)
