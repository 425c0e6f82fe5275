"""One reading of a known text: the logits that a model gives at each of its output tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from toolkit.speculation.interfaces import LanguageModel, SamplingParams, Step
from toolkit.speculation.sampling import confidence, distribution, most_likely

_CHUNK = 128  # logits of so many tokens are in memory at once


def teacher_forced(
    model: LanguageModel, prompt: Sequence[int], output: Sequence[int]
) -> Iterator[NDArray[np.float32]]:  # pieces [R, V]; T rows in all
    """The rows from which each token of `output` would be chosen, the true text before it."""
    tokens = np.asarray([*prompt, *output[:-1]], dtype=np.int64)
    first = len(prompt) - 1  # the prompt's last token gives the first row
    seq = model.open()
    try:
        starts = [*range(0, first, _CHUNK), *range(first, len(tokens), _CHUNK)]
        for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True):
            rows = 0 if start < first else end - start
            [read] = model.forward([Step(seq, tokens[start:end], rows=rows)])
            if rows:
                yield read.logits
    finally:
        model.close(seq)


def true_token_probs(
    model: LanguageModel,
    prompt: Sequence[int],
    output: Sequence[int],  # [T]
    sampling: SamplingParams,
    vocab_size: int | None = None,  # of the logits to look at; None: all
) -> NDArray[np.float64]:  # [T]
    """P(output token) after temperature, top-k and top-p; greedy: 1 for the model's choice, else 0.

    A token outside the model's vocabulary has no chance.
    """
    found: list[float] = []
    for piece in teacher_forced(model, prompt, output):
        logits = piece[:, :vocab_size]
        true = output[len(found) : len(found) + len(logits)]
        if sampling.greedy:
            chosen = most_likely(logits)
            found += [float(a == b) for a, b in zip(chosen, true, strict=True)]
        else:
            found += [
                float(distribution(row, sampling)[token]) if token < len(row) else 0.0
                for row, token in zip(logits, true, strict=True)
            ]
    return np.array(found)


def confidences(
    model: LanguageModel,
    prompt: Sequence[int],
    output: Sequence[int],  # [T]
    vocab_size: int | None = None,
) -> NDArray[np.float64]:  # [T]
    """How sure the model is of its own choice for each output token, the true text before it."""
    pieces = teacher_forced(model, prompt, output)
    return np.array([confidence(row[:vocab_size]) for piece in pieces for row in piece])
