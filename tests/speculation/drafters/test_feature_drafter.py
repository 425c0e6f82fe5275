"""EAGLE's way to draft, on models small enough to enumerate.

The fake target's state of a token is the token's number, and so is the fake head's feature: then
every pair that the head is given must be (a token, the token before it), which it checks.
"""

import os

import numpy as np
import pytest

from tests.speculation.table_model import FakeTableModel, random_table
from tests.speculation.test_distribution import DRAFT, LENGTH, PROMPT, TARGET, p_of
from tests.speculation.test_loop import TARGET as LONGER_TARGET
from tests.speculation.test_loop import plain, prompts, texts
from toolkit.speculation.draft_length import Adaptive, Confidence, Fixed
from toolkit.speculation.drafters.feature_drafter import FeatureDrafter
from toolkit.speculation.drafters.feature_trees import grow_dynamic, grow_fixed
from toolkit.speculation.interfaces import SamplingParams, StepOutput
from toolkit.speculation.loop import Request, SpeculativeLoop
from toolkit.speculation.sampling import distribution
from toolkit.speculation.trace import TracedText

PROMPTS = int(os.environ.get("SPECTOOL_TEST_PROMPTS", "8"))  # all 30 take minutes
CHOICES = ((0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 0))


class FakeFeatureHead(FakeTableModel):
    """Knows the tokens in `ids`; says what the table says after a token, whatever the feature."""

    def __init__(self, table, ids=None, **limits):
        super().__init__(table, **limits)
        self.target_ids = np.arange(self.vocab_size) if ids is None else np.asarray(ids)
        self.checked = 0

    def fuse(self, captured):
        return captured

    def forward(self, steps):
        for step in steps:
            cache = self.cache[step.seq]
            assert step.features.shape == (len(step.tokens), 1)
            for row, feature in enumerate(step.features[:, 0].tolist()):
                seen = range(row + 1) if step.mask is None else np.flatnonzero(step.mask[row])
                before = [*cache, *step.tokens[list(seen)].tolist()][:-1]
                if before:  # the first pair's feature is the prompt's first token
                    assert feature == before[-1]
                    self.checked += 1
        outputs = super().forward(steps)
        return [
            StepOutput(
                output.logits[:, self.target_ids],
                step.tokens[:, None].astype(np.float32) if step.hidden else None,
            )
            for step, output in zip(steps, outputs, strict=True)
        ]


class FakeDrafter(FeatureDrafter):
    """A chain, or one of the trees."""

    tree = None

    @classmethod
    def create(cls, options, models):
        raise NotImplementedError

    def _grow(self, branches):
        if self.tree == "fixed":
            return grow_fixed(self._head, branches, CHOICES, self._target.vocab_size)
        if self.tree == "dynamic":
            return grow_dynamic(self._head, branches, 2, 5)
        return super()._grow(branches)


def drafter(target, head, tree=None):
    made = FakeDrafter(head, target)
    made.tree = tree
    return made


each_tree = pytest.mark.parametrize("tree", [None, "fixed", "dynamic"])
POLICIES = {"fixed": Fixed(3), "adaptive": Adaptive(1, 3), "confidence": Confidence(3, 0.35)}
each_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())


@each_tree
@each_policy
@pytest.mark.parametrize("ids", [None, [0, 2, 3, 7, 8, 11]])
def test_greedy_text_equals_plain_text_in_ragged_batches(tree, policy, ids):
    head = FakeFeatureHead(LONGER_TARGET + random_table(1, 12, order=2, spread=0.7), ids)
    target = FakeTableModel(LONGER_TARGET, max_batch_size=4)
    requests = [Request(prompt, 64) for prompt in prompts(PROMPTS)]
    loop = SpeculativeLoop(target, drafter(target, head, tree), policy, max_prefill_tokens=16)
    outputs = loop.generate(requests)
    assert texts(outputs) == plain(requests)
    assert sum(output.stats.accepted_tokens for output in outputs) > 3 * PROMPTS
    assert (target.cache, head.cache) == ({}, {})
    assert head.checked > 30 * PROMPTS


@pytest.mark.parametrize("tree", [None, "fixed"])  # a dynamic one may prefer breadth
def test_a_perfect_head_is_accepted_whole(tree):
    head = FakeFeatureHead(LONGER_TARGET)
    target = FakeTableModel(LONGER_TARGET)
    requests = [Request(prompt, 41) for prompt in prompts(3)]
    loop = SpeculativeLoop(target, drafter(target, head, tree), Fixed(3))
    for output in loop.generate(requests):
        assert output.stats.accepted_per_step == [3] * 10


def p_value(count, tree, policy, ids=None):
    """Of the hypothesis that the loop's texts have the exact distribution."""
    target = FakeTableModel(TARGET, max_batch_size=64)
    head = FakeFeatureHead(DRAFT, ids, max_batch_size=64)
    loop = SpeculativeLoop(target, drafter(target, head, tree), policy)
    outputs = loop.generate(
        [Request(PROMPT, LENGTH, SamplingParams(1.0, seed=seed)) for seed in range(count)]
    )
    assert sum(output.stats.accepted_tokens for output in outputs) > count / 10
    return p_of(outputs, SamplingParams(1.0))


@pytest.mark.parametrize(
    ("tree", "policy"),
    [
        (None, "fixed"),
        (None, "confidence"),
        ("fixed", "fixed"),
        ("fixed", "adaptive"),
        ("dynamic", "fixed"),
        ("dynamic", "confidence"),
    ],
)
def test_sampled_text_has_the_targets_distribution(tree, policy):
    assert p_value(10_000, tree, POLICIES[policy]) > 0.001


@pytest.mark.parametrize("tree", [None, "fixed"])
def test_a_reduced_vocabulary_keeps_the_distribution(tree):
    assert p_value(10_000, tree, Fixed(2), ids=[0, 2]) > 0.001


def test_drawing_siblings_with_replacement_is_noticed(monkeypatch):
    """The draft must forget a sibling it drew; here it reports what it did not draw from."""
    from toolkit.speculation.drafters import feature_trees

    monkeypatch.setattr(feature_trees, "spread", lambda probs, ids, size: np.roll(probs, 1))
    assert p_value(10_000, "fixed", Fixed(2)) < 1e-6


class TestTrace:
    def test_greedy_is_whether_each_draft_is_the_true_token(self):
        head = FakeFeatureHead(random_table(3, 12, order=2, spread=2.0), max_seq_len=60)
        target = FakeTableModel(LONGER_TARGET)
        prompt = prompts(1)[0][:9]
        [output] = plain([Request(prompt, 40)])
        text = TracedText(prompt, tuple(output), SamplingParams())
        trace = drafter(target, head).trace(text, 4)
        whole = [*prompt, *output]
        for start in range(39):
            for depth in range(4):
                at = len(prompt) + start + 1 + depth
                stands = 0.0
                if at < len(whole):
                    stands = float(head.table[whole[at - 2], whole[at - 1]].argmax() == whole[at])
                assert trace.accept[start, depth] == stands
        assert (target.cache, head.cache) == ({}, {})

    def test_sampled_is_the_ratio_of_the_two_probabilities(self):
        ids = [0, 1, 4, 5, 9]
        head = FakeFeatureHead(random_table(3, 12, order=2, spread=1.0), ids)
        target = FakeTableModel(LONGER_TARGET)
        sampling = SamplingParams(0.8)
        prompt, output = (3, 1, 4), (1, 5, 9, 2, 6)
        probs = np.array([0.3, 0.2, 0.6, 0.1, 0.4])
        trace = drafter(target, head).trace(TracedText(prompt, output, sampling, probs), 2)
        whole = [*prompt, *output]
        for start in range(4):
            for depth in range(2):
                at = 3 + start + 1 + depth
                stands = 0.0
                if at < len(whole) and whole[at] in ids:
                    row = distribution(head.table[whole[at - 2], whole[at - 1]][ids], sampling)
                    stands = min(1.0, row[ids.index(whole[at])] / probs[start + 1 + depth])
                assert trace.accept[start, depth] == pytest.approx(stands)
