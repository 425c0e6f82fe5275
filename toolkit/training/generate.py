"""The target answers prompts at full batch, and what it computed on the way is kept.

Between two steps nothing is held that cannot be made again: a shard is written when its last
sequence has ended, and a run that was interrupted goes on with the first shard that is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from toolkit.speculation.interfaces import LanguageModel, Step, StepOutput
from toolkit.speculation.sampling import Role, draw, most_likely, uniform
from toolkit.training.prompts import PromptBook, Split
from toolkit.training.shards import Sample, read_shard, write_shard

PASSAGES_BEHIND = 4  # shards


class Tokens(Protocol):
    """What generating needs of a tokenizer."""

    @property
    def eos_ids(self) -> Any: ...

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, kw_only=True)
class DataPlan:
    """Which outputs are wanted; every field changes them."""

    split: Split
    seed: int = 0
    sequences: int = 256  # in one shard
    max_tokens: int = 144  # of an output
    max_prompt_tokens: int = 256  # a longer prompt keeps its end
    temperature: float = 0.7  # of every second sequence; the others are greedy

    def shard(self, directory: Path, number: int) -> Path:
        return directory / f"{self.split}-{number:05d}.safetensors"


@dataclass
class _Running:
    number: int  # of the sequence, over all shards
    seq: int
    prompt_length: int
    tokens: list[int]
    fed: int = 0
    hidden: list[NDArray[Any]] = field(default_factory=list)


class Generator:
    """Fills shards in order, `target.max_batch_size` sequences at a time."""

    def __init__(
        self, target: LanguageModel, tokenizer: Tokens, book: PromptBook, plan: DataPlan
    ) -> None:
        self._target, self._tokenizer, self._book, self._plan = target, tokenizer, book, plan
        self._stop = frozenset(tokenizer.eos_ids)
        self._running: list[_Running] = []
        self._done: dict[int, Sample] = {}

    def fill(
        self,
        directory: Path,
        shards: Iterable[int],
        report: Callable[[int, int], None] = lambda *_: None,
    ) -> None:
        """Until all `shards` exist; `report` gets each new one's number and tokens."""
        directory.mkdir(parents=True, exist_ok=True)
        plan = self._plan
        todo = [n for n in shards if not plan.shard(directory, n).exists()]
        waiting = [n * plan.sequences + i for n in todo for i in range(plan.sequences)]
        waiting.reverse()
        answers: dict[int, list[str]] = {}
        while waiting or self._running:
            while waiting and len(self._running) < self._target.max_batch_size:
                shard = waiting[-1] // plan.sequences
                if shard not in answers:
                    # From an earlier shard; where it is still being made, it is waited for.
                    earlier = plan.shard(directory, shard - PASSAGES_BEHIND)
                    if shard - PASSAGES_BEHIND in todo and not earlier.exists():
                        break
                    answers = {shard: self._answers(earlier) if earlier.exists() else []}
                self._begin(waiting.pop(), answers[shard])
            for number in self._step():
                shard = number // plan.sequences
                wanted = range(shard * plan.sequences, (shard + 1) * plan.sequences)
                if all(i in self._done for i in wanted):
                    samples = [self._done.pop(i) for i in wanted]
                    write_shard(plan.shard(directory, shard), samples)
                    report(shard, sum(len(s.tokens) for s in samples))

    def _answers(self, path: Path) -> list[str]:
        return [self._tokenizer.decode(s.output.tolist()) for s in read_shard(path)]

    def _begin(self, number: int, answers: Sequence[str]) -> None:
        plan = self._plan
        text = self._book.prompt(plan.split, plan.seed, number, answers)
        tokens = self._tokenizer.chat([{"role": "user", "content": text}])
        tokens = tokens[-plan.max_prompt_tokens :]
        self._running.append(_Running(number, self._target.open(), len(tokens), tokens))

    def _step(self) -> list[int]:
        """One pass over all that run; the numbers of those that ended."""
        steps = [
            Step(r.seq, np.array(r.tokens[r.fed :], np.int64), rows=1, hidden=True)
            for r in self._running
        ]
        outputs = self._target.forward(steps)
        tokens = self._choose(outputs)
        ended = []
        for running, output, token in zip(self._running, outputs, tokens, strict=True):
            assert output.hidden is not None
            running.hidden.append(output.hidden.astype(ml_dtypes.bfloat16))
            running.fed = len(running.tokens)
            running.tokens.append(token)
            made = len(running.tokens) - running.prompt_length
            if token in self._stop or made >= self._plan.max_tokens:
                self._end(running)
                ended.append(running.number)
        self._running = [r for r in self._running if r.number not in ended]
        return ended

    def _choose(self, outputs: Sequence[StepOutput]) -> list[int]:
        plan, tokens = self._plan, []
        for running, output in zip(self._running, outputs, strict=True):
            if _greedy(running.number):
                tokens += most_likely(output.logits)
                continue
            u = uniform(plan.seed + running.number, len(running.tokens), Role.EMIT)
            # In float32, not `distribution`: five times faster, and nothing is accepted by it.
            weights = np.exp((output.logits[0] - output.logits.max()) / plan.temperature)
            tokens.append(draw(weights.astype(np.float64), u))
        return tokens

    def _end(self, running: _Running) -> None:
        self._target.close(running.seq)
        last = np.zeros((1, running.hidden[0].shape[1]), ml_dtypes.bfloat16)
        self._done[running.number] = Sample(
            np.array(running.tokens, np.int32),
            running.prompt_length,
            _greedy(running.number),
            np.concatenate([*running.hidden, last]),
        )


def _greedy(number: int) -> bool:
    return number % 2 == 0
