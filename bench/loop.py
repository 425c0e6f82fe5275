"""What the loop itself costs: a model that answers at once, a vocabulary of real size.

    python bench/loop.py [--vocab 49152] [--steps 300]

Everything that is not the models' forward passes: drafting by lookup, verification, sampling,
rollback, counting. Compare it with a verify step of the engine (15 to 20 ms for a 135M model).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from time import perf_counter_ns

import numpy as np

from toolkit.speculation.draft_length import Fixed
from toolkit.speculation.drafters.ngram import NGramDrafter
from toolkit.speculation.interfaces import SamplingParams, Step, StepOutput
from toolkit.speculation.loop import Request, SpeculativeLoop

CASES = {
    "greedy": SamplingParams(),
    "temperature 1": SamplingParams(1.0),
    "top-k 50": SamplingParams(1.0, top_k=50),
    "top-p 0.9": SamplingParams(1.0, top_p=0.9),
}


class InstantModel:
    """Random logits, drawn once; the KV cache is a length."""

    max_seq_len, max_batch_size = 100_000, 64
    kv_capacity, kv_usage = 6_400_000, 0.0

    def __init__(self, vocab_size: int, most_rows: int) -> None:
        self.vocab_size = vocab_size
        rng = np.random.default_rng(0)
        self.logits = rng.normal(0, 3, (most_rows, vocab_size)).astype(np.float32)
        self.lengths: dict[int, int] = {}

    def open(self) -> int:
        seq = max(self.lengths, default=0) + 1
        self.lengths[seq] = 0
        return seq

    def close(self, seq: int) -> None:
        del self.lengths[seq]

    def length(self, seq: int) -> int:
        return self.lengths[seq]

    def adopt(self, seq: int, tokens: Sequence[int]) -> int:
        return 0

    def share(self, seq: int, tokens: Sequence[int]) -> None:
        pass

    def truncate(self, seq: int, length: int) -> None:
        self.lengths[seq] = length

    def keep(self, seq: int, base: int, rows: Sequence[int]) -> None:
        self.lengths[seq] = base + len(rows)

    def forward(self, steps: Sequence[Step]) -> list[StepOutput]:
        for step in steps:
            self.lengths[step.seq] += len(step.tokens)
        return [StepOutput(self.logits[: step.rows]) for step in steps]


def measure(vocab: int, sampling: SamplingParams, batch: int, k: int, steps: int) -> float:
    """Median nanoseconds of a step, per request in it."""
    loop = SpeculativeLoop(InstantModel(vocab, k + 1), NGramDrafter(), Fixed(k))
    for seq in range(batch):
        # The same token again and again, so that lookup always drafts k.
        loop.submit(Request((seq,) * 50, steps * (k + 1), sampling))
    loop.step()
    times = []
    for _ in range(steps):
        start = perf_counter_ns()
        loop.step()
        times.append(perf_counter_ns() - start)
    return float(np.median(times)) / batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    rows = [
        {
            "sampling": name,
            "batch": batch,
            "k": k,
            "us": round(measure(options.vocab, sampling, batch, k, options.steps) / 1e3, 1),
        }
        for name, sampling in CASES.items()
        for batch in (1, 4)
        for k in (0, 4)
    ]
    print("per request and step, us        b1 k0    b1 k4    b4 k0    b4 k4")
    for name in CASES:
        print(f"{name:<26}", *(f"{row['us']:8.1f}" for row in rows if row["sampling"] == name))
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
