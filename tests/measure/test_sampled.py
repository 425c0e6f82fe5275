"""Samples of both sides: what is drawn, what the control is for, and what tests nothing."""

import numpy as np
import pytest

from toolkit.measure.sampled import check_sampled
from toolkit.measure.subject import Answer, Counts, Question, Subject
from toolkit.measure.verification import Verification
from toolkit.speculation.interfaces import SamplingParams

EVEN = [0.25] * 4
UNEVEN = [0.55, 0.15, 0.15, 0.15]


class FakeSubject(Subject):
    """Tokens drawn from one distribution for each pass: plain, speculative, plain again."""

    rounding = "float32"

    def __init__(self, *passes, drafted=7):
        self.passes, self.drafted, self.asked = list(passes), drafted, []

    def answer(self, questions, *, speculate, advance=None):
        probs = self.passes[len(self.asked)]
        self.asked.append((speculate, questions))
        counts = Counts(draft_tokens=self.drafted if speculate else 0)
        texts = (
            np.random.default_rng(q.sampling.seed).choice(4, q.max_tokens, p=probs).tolist()
            for q in questions
        )
        return [Answer(tuple(text), "", counts) for text in texts]

    def gap(self, question, common, pair):
        raise AssertionError("samples have no gap")


def check(*passes, lossy=None, **given):
    subject = FakeSubject(*passes, **given)
    sampling = SamplingParams(1.0, seed=3)
    questions = [
        Question(domain="d", id=str(i), text="", tokens=(i,), max_tokens=6, sampling=sampling)
        for i in range(3)
    ]
    return subject, check_sampled(subject, questions, samples=40, alpha=0.001, lossy=lossy)


def test_every_text_has_a_seed_of_its_own_and_every_pass_others():
    subject, report = check(EVEN, EVEN, EVEN)
    assert [speculate for speculate, _ in subject.asked] == [False, True, False]
    seeds = [q.sampling.seed for _, questions in subject.asked for q in questions]
    assert len(set(seeds)) == len(seeds) == 3 * 3 * 40
    again, _ = check(EVEN, EVEN, EVEN)
    assert again.asked == subject.asked  # the outcome is fixed by the base seed
    assert report.passed
    assert report.compared.texts == (240, 120)
    assert "no difference at temperature 1: 240 against 120 texts" in report.conclusion()
    # Both comparisons share the rate that was asked for.
    assert report.control.alpha + report.compared.alpha == pytest.approx(0.001)


def test_another_distribution_with_speculation_is_a_bug():
    _, report = check(EVEN, UNEVEN, EVEN)
    assert not report.control.differ
    assert not report.passed
    assert "this is a bug" in report.conclusion()


def test_a_target_that_changed_during_the_run_is_not_blamed_on_speculation():
    _, report = check(EVEN, UNEVEN, UNEVEN)
    assert not report.passed
    assert "changed its distribution during the run" in report.conclusion()
    assert "bug" not in report.conclusion()


def test_without_any_draft_nothing_was_tested():
    _, report = check(EVEN, EVEN, EVEN, drafted=0)
    assert not report.passed
    assert "nothing was drafted at temperature 1" in report.conclusion()


def test_texts_without_chance_test_nothing():
    _, report = check(*[[1.0, 0.0, 0.0, 0.0]] * 3)
    assert not report.passed
    assert "is the seed or the temperature ignored?" in report.conclusion()


@pytest.mark.parametrize(
    ("passes", "drafted", "words"),
    [
        ((EVEN, UNEVEN, EVEN), 7, "lossy by choice: speculation changes the distribution"),
        ((EVEN, EVEN, EVEN), 7, "lossy by choice: no difference"),
        ((EVEN, UNEVEN, UNEVEN), 7, "failed: sampled: plain decoding"),
        ((EVEN, EVEN, EVEN), 0, "failed: sampled: nothing was drafted"),
    ],
)
def test_a_lossy_choice_excuses_nothing_else(passes, drafted, words):
    _, report = check(*passes, drafted=drafted, lossy="as the recipe says")
    assert not report.passed
    found = Verification((report,), 0.001, "as the recipe says").conclusion()
    assert found.startswith(words)
    assert ("as the recipe says" in found) == found.startswith("lossy by choice")
