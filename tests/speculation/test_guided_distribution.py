"""Sampled under a grammar: exactly the masked target's distribution, by counting strings."""

from functools import cache

import numpy as np
import pytest
from scipy.stats import chisquare

from toolkit.speculation import loop as loop_module
from toolkit.speculation.draft_length import Fixed
from toolkit.speculation.drafters.draft_target import DraftTargetDrafter
from toolkit.speculation.interfaces import Proposal, SamplingParams
from toolkit.speculation.loop import SpeculativeLoop
from toolkit.speculation.sampling import Role, distribution, draw, uniform

from .table_model import FakeTableModel
from .test_distribution import filtered
from .test_guided_loop import (
    DRAFT,
    DRAFTERS,
    FINITE,
    LANGUAGE,
    PROMPT,
    TARGET,
    VOCAB,
    guided,
    spelled,
)
from .tiny_tokens import END, LETTERS, OTHER_END

PLAIN = SamplingParams(1.0)
EVERYTHING = SamplingParams(1.3, top_k=3, top_p=0.9)
COUNT = 1_500


def allowed(text):
    """Tokens that leave a string of the language within reach."""
    letters = {t: s for t, s in enumerate(LETTERS) if any(w.startswith(text + s) for w in LANGUAGE)}
    return [*letters, *((END, OTHER_END) if text in LANGUAGE else ())]


def exact(sampling):
    """Token sequence -> probability: the chain rule over rows that are masked, then filtered."""
    found = {}

    def walk(tokens, probability):
        if tokens and tokens[-1] in (END, OTHER_END):
            found[tokens] = probability
            return
        row = TARGET[(*PROMPT, *tokens)[-2:]]
        choices = allowed(spelled(tokens))
        masked_row = [logit if t in choices else -np.inf for t, logit in enumerate(row)]
        finite = {t: p for t, p in filtered(masked_row, sampling).items() if p > 0}
        for token, p in finite.items():
            walk((*tokens, token), probability * p)

    walk((), 1.0)
    return found


@cache
def expectations(sampling):
    return exact(sampling)


def p_value(drafter, sampling=PLAIN, policy=None, count=COUNT):
    """Of the hypothesis that the texts have the exact distribution; rare texts are pooled."""
    requests = [
        guided(
            PROMPT,
            9,
            FINITE,
            sampling=SamplingParams(sampling.temperature, sampling.top_k, sampling.top_p, seed),
        )
        for seed in range(count)
    ]
    loop = SpeculativeLoop(
        FakeTableModel(TARGET, max_batch_size=64), drafter, policy or Fixed(3 if drafter else 0)
    )
    expected = expectations(sampling)
    observed = dict.fromkeys(expected, 0)
    for output in loop.generate(requests):
        assert tuple(output.tokens) in observed, "a text that the masked target never says"
        observed[tuple(output.tokens)] += 1
    common = [text for text in expected if expected[text] * count >= 8]
    seen = [observed[text] for text in common]
    wanted = [expected[text] * count for text in common]
    return chisquare([*seen, count - sum(seen)], [*wanted, count - sum(wanted)]).pvalue


def test_the_masks_of_the_library_are_those_of_the_language():
    matcher = FINITE.matcher()
    beginnings = {()}
    for _ in range(4):
        beginnings |= {(*b, t) for b in beginnings for t in allowed(spelled(b)) if t < 3}
    assert len(beginnings) > 25
    for tokens in beginnings:
        assert np.flatnonzero(matcher.mask(tokens)).tolist() == allowed(spelled(tokens))


def test_the_exact_distribution_sums_to_one():
    for sampling in (PLAIN, EVERYTHING):
        assert sum(expectations(sampling).values()) == pytest.approx(1.0)
    assert len(expectations(PLAIN)) == 60


@pytest.mark.parametrize(
    ("drafter", "sampling"),
    [
        ("draft_target", PLAIN),
        ("draft_target", EVERYTHING),
        ("smaller vocabulary", EVERYTHING),
        ("ngram", PLAIN),
        ("ngram", EVERYTHING),
        ("tree", PLAIN),
        ("tree", EVERYTHING),
    ],
)
def test_sampled_texts_have_the_masked_targets_distribution(drafter, sampling):
    assert p_value(DRAFTERS[drafter](), sampling) > 0.001


def test_plain_texts_have_the_masked_targets_distribution():
    assert p_value(None) > 0.001


class FakeUnmaskedDrafter(DraftTargetDrafter):
    """Draws from its own distribution, grammar or not, and says so: exact, if wasteful."""

    def propose(self, requests):
        bare = [type(r)(r.seq, r.tokens, r.draft_len, r.sampling) for r in requests]
        return super().propose(bare)


def unmasked():
    return FakeUnmaskedDrafter(FakeTableModel(DRAFT, max_batch_size=64), VOCAB)


def test_a_drafter_that_knows_no_grammars_costs_speed_not_exactness():
    assert p_value(unmasked()) > 0.001


def test_throwing_away_what_was_drawn_against_the_grammar_is_noticed(monkeypatch):
    monkeypatch.setattr(
        Proposal, "within", lambda self, matcher: self.first(matcher.prefix(self.tokens))
    )
    assert p_value(unmasked()) < 1e-6


def test_masking_only_the_drafts_tokens_and_not_its_distribution_is_noticed():
    class FakeHalfMaskedDrafter(DraftTargetDrafter):
        """Draws under the mask, but gives the distribution without it."""

        def propose(self, requests):
            proposals = super().propose(requests)
            for request, proposal in zip(requests, proposals, strict=True):
                text = [*request.tokens, *proposal.tokens]
                for i in range(len(proposal.tokens)):
                    end = len(request.tokens) + i
                    row = DRAFT[tuple(text[end - 2 : end])]
                    proposal.probs[i] = distribution(row, request.sampling)
            return proposals

    drafter = FakeHalfMaskedDrafter(FakeTableModel(DRAFT, max_batch_size=64), VOCAB)
    assert p_value(drafter) < 1e-6


def test_masking_after_the_filters_instead_of_before_is_noticed(monkeypatch):
    def late(state, proposal, output, epsilon):
        sampling, position = state.request.sampling, len(state.tokens)
        row = distribution(output.logits[0], sampling) * np.resize(
            np.append(state.matcher.mask(), [False]), VOCAB
        )
        if not row.any():  # the filters left nothing that is allowed: late masks even get stuck
            row = np.append(state.matcher.mask(), [False]).astype(float)
        return [draw(row, uniform(sampling.seed, position, Role.EMIT))], []

    monkeypatch.setattr(loop_module, "choose", late)
    with pytest.raises((AssertionError, ValueError)):
        assert p_value(None, EVERYTHING) > 1e-6
