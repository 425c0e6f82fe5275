"""Prompts of random tokens, as load generators make them, say nothing about acceptance.

A target answers noise with noise, so a drafter's hits on it are not those on real text; throughput
on it overstates what users see. A tokenizer gives its small numbers to what is frequent, so the
tokens of text crowd there while random ones are spread evenly. Over 16 equal parts of a
vocabulary, half the sum of |share - 1/16| is 0.64 to 0.77 for the bundled sets (Korean, code and
English; SmolLM2's tokenizer) and 0.10 to 0.27 for random tokens, also when they went through text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from toolkit.errors import InputError

_PARTS = 16
_ENOUGH = 64  # tokens; fewer are uneven by chance
_EVEN = 0.4


def unevenness(tokens: Sequence[int], vocab_size: int) -> float:
    """0: spread evenly over the vocabulary; towards 1: all in one part of it."""
    parts = np.minimum(np.asarray(tokens, dtype=np.int64) * _PARTS // vocab_size, _PARTS - 1)
    shares = np.bincount(parts, minlength=_PARTS) / len(tokens)
    return float(np.abs(shares - 1 / _PARTS).sum() / 2)


def refuse_random(domains: Mapping[str, Iterable[Sequence[int]]], vocab_size: int) -> None:
    """InputError for domains whose prompts look like random tokens."""
    problems = []
    for domain, prompts in domains.items():
        tokens = [token for prompt in prompts for token in prompt]
        if len(tokens) >= _ENOUGH and (found := unevenness(tokens, vocab_size)) < _EVEN:
            problems.append(
                f"  {domain}: its {len(tokens)} tokens are spread over the vocabulary as random "
                f"ones are (unevenness {found:.2f}; text has above {_EVEN})"
            )
    if problems:
        lines = "\n".join(problems)
        raise InputError(
            f"random tokens say nothing about acceptance: {len(problems)} domain(s)\n{lines}\n"
            "use prompts like those that users send, or --log of real traffic with "
            "`tune --mode trace`"
        )
