"""Sampled with speculation, a text has exactly the target's distribution: chi-square over many.

A vocabulary of three and texts of four tokens can be enumerated, and a text is long enough for two
draft tokens to be refused, recovered, accepted and followed by a bonus token.
"""

from itertools import product

import numpy as np
import pytest
from scipy.stats import chisquare

from toolkit.speculation.draft_length import Adaptive, Confidence, Fixed
from toolkit.speculation.drafters.draft_target import DraftTargetDrafter
from toolkit.speculation.drafters.ngram import NGramDrafter
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.loop import Request, SpeculativeLoop
from toolkit.speculation.sampling import Role, uniform, uniforms

from .table_model import FakeTableModel, random_table
from .test_loop_trees import FakeTreeDrafter

VOCAB, LENGTH = 3, 4
PROMPT = (0, 1, 2, 2, 1, 0, 0, 2, 0, 1)  # every pair but 1 1, so that lookup always finds something
TARGET = random_table(8, VOCAB, spread=0.5)
DRAFT = TARGET + random_table(9, VOCAB, spread=1.0)


def draft_target():
    return DraftTargetDrafter(FakeTableModel(DRAFT, max_batch_size=64))


def tree():
    """Siblings drawn without replacement, two levels deep."""
    return FakeTreeDrafter(DRAFT, width=2)


def filtered(row, sampling):
    """Softmax, top-k and top-p in plain words; without ties there is no question of order."""
    weights = {token: np.exp(logit / sampling.temperature) for token, logit in enumerate(row)}
    by_weight = sorted(weights, key=weights.__getitem__, reverse=True)
    by_weight = by_weight[: sampling.top_k or None]
    total, kept, reached = sum(weights[t] for t in by_weight), [], 0.0
    for token in by_weight:
        if reached < sampling.top_p:
            kept.append(token)
            reached += weights[token] / total
    total = sum(weights[t] for t in kept)
    return {token: weights[token] / total for token in kept}


def exact(sampling):
    """Text -> probability, by the chain rule."""
    rows = [filtered(row, sampling) for row in TARGET]
    result = {}
    for text in product(range(VOCAB), repeat=LENGTH):
        context = (PROMPT[-1], *text)
        result[text] = np.prod([rows[a].get(b, 0.0) for a, b in zip(context, text, strict=False)])
    return result


def p_value(count, sampling, policy, drafter):
    """Of the hypothesis that the loop's texts have the exact distribution."""
    loop = SpeculativeLoop(FakeTableModel(TARGET, max_batch_size=64), drafter, policy)
    outputs = loop.generate(
        [
            Request(
                PROMPT,
                LENGTH,
                SamplingParams(sampling.temperature, sampling.top_k, sampling.top_p, seed),
            )
            for seed in range(count)
        ]
    )
    if drafter:
        accepted = sum(o.stats.accepted_tokens for o in outputs)
        assert 0.1 < accepted / sum(o.stats.draft_tokens for o in outputs) < 0.95
    return p_of(outputs, sampling)


def p_of(outputs, sampling):
    """Of the hypothesis that these texts have the exact distribution."""
    count, expected = len(outputs), exact(sampling)
    observed = dict.fromkeys(expected, 0)
    for output in outputs:
        observed[tuple(output.tokens)] += 1
    assert all(expected[text] > 0 for text, times in observed.items() if times)
    possible = [text for text in expected if expected[text] > 0]
    assert min(expected[text] for text in possible) * count > 5
    return chisquare(
        [observed[text] for text in possible], [expected[text] * count for text in possible]
    ).pvalue


PLAIN = SamplingParams(1.0)
FILTERS = {
    "temperature": SamplingParams(1.5),
    "top-k": SamplingParams(1.0, top_k=2),
    "top-p": SamplingParams(1.0, top_p=0.8),
    "all three": SamplingParams(1.3, top_k=2, top_p=0.85),
}
DRAFTERS = {"draft_target": draft_target, "ngram": NGramDrafter, "tree": tree}
each_drafter = pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS.keys())


@pytest.mark.parametrize(
    ("sampling", "count"),
    [
        (PLAIN, 200_000),
        (SamplingParams(1.0, top_k=2), 50_000),
        (SamplingParams(1.0, top_p=0.8), 50_000),
    ],
    ids=["temperature 1", "with top-k", "with top-p"],
)
def test_many_continuations_have_the_targets_distribution(sampling, count):
    assert p_value(count, sampling, Fixed(2), draft_target()) > 0.001


def test_continuations_drafted_by_lookup_have_the_targets_distribution():
    assert p_value(30_000, PLAIN, Fixed(2), NGramDrafter()) > 0.001


def test_plain_continuations_have_the_targets_distribution():
    assert p_value(10_000, PLAIN, Fixed(0), None) > 0.001


@each_drafter
@pytest.mark.parametrize("sampling", FILTERS.values(), ids=FILTERS.keys())
def test_filtered_continuations_have_the_filtered_distribution(drafter, sampling):
    assert p_value(8_000, sampling, Fixed(2), drafter()) > 0.001


@each_drafter
def test_adaptive_lengths_keep_the_distribution(drafter):
    assert p_value(12_000, PLAIN, Adaptive(1, 3), drafter()) > 0.001


@pytest.mark.parametrize("threshold", [0.45, 0.6])
def test_stopping_where_the_draft_is_unsure_keeps_the_distribution(threshold):
    assert p_value(10_000, PLAIN, Confidence(3, threshold), draft_target()) > 0.001


@each_drafter
def test_recovering_from_the_target_instead_of_the_residual_is_noticed(drafter, monkeypatch):
    for module in ("verify", "verify_tree"):
        monkeypatch.setattr(f"toolkit.speculation.{module}.residual", lambda target, draft: target)
    assert p_value(10_000, PLAIN, Fixed(2), drafter()) < 1e-6


@each_drafter
def test_accepting_too_readily_is_noticed(drafter, monkeypatch):
    def eager(seed, position, count, role):
        scale = 0.8 if role is Role.ACCEPT else 1.0
        return [scale * u for u in uniforms(seed, position, count, role)]

    def eager_one(seed, position, role, sibling):
        return (0.8 if role is Role.ACCEPT else 1.0) * uniform(seed, position, role, sibling)

    monkeypatch.setattr("toolkit.speculation.steps.uniforms", eager)
    monkeypatch.setattr("toolkit.speculation.steps.uniform", eager_one)
    assert p_value(10_000, PLAIN, Fixed(2), drafter()) < 1e-6


@each_drafter
def test_reusing_the_drafts_uniform_is_noticed(drafter, monkeypatch):
    monkeypatch.setattr(
        "toolkit.speculation.steps.uniforms",
        lambda seed, position, count, role: uniforms(seed, position, count, Role.DRAFT),
    )
    monkeypatch.setattr(
        "toolkit.speculation.steps.uniform",
        lambda seed, position, role, sibling: uniform(seed, position, Role.DRAFT, sibling),
    )
    assert p_value(10_000, PLAIN, Fixed(2), drafter()) < 1e-6


def test_forgetting_that_siblings_are_drawn_without_replacement_is_noticed(monkeypatch):
    """Three children of one node; each accept test must know which siblings came before."""
    from toolkit.speculation import verify_tree

    right = verify_tree._draft_row
    monkeypatch.setattr(
        verify_tree,
        "_draft_row",
        lambda probs, child, token, size, refused: right(probs, child, token, size, []),
    )
    assert p_value(10_000, PLAIN, Fixed(1), FakeTreeDrafter(DRAFT, width=2)) < 1e-6
