import json

import numpy as np
import pytest

from tests.speculation.table_model import FakeTableModel, random_table
from tests.speculation.tiny_tokens import guidance
from toolkit.errors import InputError
from toolkit.measure.equivalence import check_equivalence
from toolkit.measure.subject import EngineSubject, Question
from toolkit.measure.verification import Verification
from toolkit.speculation.draft_length import Fixed
from toolkit.speculation.drafters.draft_target import DraftTargetDrafter
from toolkit.speculation.drafters.ngram import NGramDrafter
from toolkit.speculation.drafters.none import NoDrafter
from toolkit.speculation.grammar import Guide
from toolkit.speculation.interfaces import StepOutput
from toolkit.speculation.loop import SpeculativeLoop

VOCAB = 12
TABLE = random_table(0, VOCAB, order=2, spread=2.0)
PROMPTS = [
    Question(
        domain=domain, id=f"{domain}-{i}", text="", tokens=(i, VOCAB - 1 - i, i), max_tokens=20
    )
    for domain in ("code", "edit")
    for i in range(5)
]


def perfect_drafter():
    return DraftTargetDrafter(FakeTableModel(TABLE))


def check(target=None, drafter=perfect_drafter, dtype="float32"):
    target = target or FakeTableModel(TABLE)

    def loop(speculate):
        return SpeculativeLoop(target, drafter() if speculate else None, Fixed(3 * speculate))

    subject = EngineSubject(target, loop, dtype=dtype, stop_tokens=frozenset(), batch=2)
    return check_equivalence(subject, PROMPTS)


class FakeRoundingModel(FakeTableModel):
    """Tokens 3 and 4 are equal but for `gap`; verifying adds `error` to token 4."""

    def __init__(self, gap, error):
        table = np.array(TABLE)
        table[..., 3] = 16.0
        table[..., 4] = 16.0 - gap
        super().__init__(table)
        self.error = error

    def forward(self, steps):
        outputs = super().forward(steps)
        for step, output in zip(steps, outputs, strict=True):
            if step.rows > 1:
                output.logits[:, 4] += self.error
        return outputs


class FakeFourModel(FakeTableModel):
    """Says token 4, so that its drafts stand where verifying finds token 4 better."""

    def forward(self, steps):
        outputs = super().forward(steps)
        for output in outputs:
            output.logits[:, 4] = 100.0
        return outputs


def test_texts_that_agree_pass():
    report = check()
    assert report.passed
    assert report.control == report.divergences == ()
    assert [(d.domain, d.prompts, d.tokens, d.identical) for d in report.domains] == [
        ("code", 5, 100, 5),
        ("edit", 5, 100, 5),
    ]
    assert "on all 10 prompts" in report.conclusion()


@pytest.mark.parametrize(
    ("dtype", "gap", "verdict"),
    [
        ("bfloat16", 0.2, "numerical tie"),  # 16 / 2^6 = 0.25 is within rounding
        ("bfloat16", 0.3, "bug"),
        ("float16", 0.03, "numerical tie"),  # 16 / 2^9 = 0.03125
        ("float16", 0.2, "bug"),
        ("float32", 1e-4, "numerical tie"),  # 16 / 2^17 = 0.000122
        ("float32", 0.03, "bug"),
    ],
)
def test_a_divergence_within_the_dtypes_rounding_is_a_tie_and_beyond_it_a_bug(dtype, gap, verdict):
    target = FakeRoundingModel(gap, error=gap * 1.5)
    report = check(target, lambda: DraftTargetDrafter(FakeFourModel(TABLE)), dtype=dtype)
    assert report.control == ()
    assert len(report.divergences) == len(PROMPTS)
    for found in report.divergences:
        # Prefill chose token 3; the first verify step found token 4 better.
        assert (found.position, found.plain_token, found.other_token) == (1, 3, 4)
        assert found.gap == pytest.approx(gap, rel=0.05)
        assert found.verdict == verdict
    assert report.passed == (verdict == "numerical tie")
    assert ("rounding" in report.conclusion()) == report.passed


def test_both_tokens_must_be_near_the_best_one():
    class FakeLostModel(FakeRoundingModel):
        """Verify steps put token 4 before 3, but token 5 is far better than either."""

        def forward(self, steps):
            outputs = super().forward(steps)
            for output in outputs:
                # The third computation, one step of one row over the text, sees token 5.
                if len(steps) == 1 and len(steps[0].tokens) > 3 and steps[0].rows == 1:
                    output.logits[:, 5] = 20.0
            return outputs

    report = check(FakeLostModel(1e-4, error=2e-4))
    assert {found.verdict for found in report.divergences} == {"bug"}


def test_a_loop_that_accepts_too_much_is_a_bug(monkeypatch):
    monkeypatch.setattr(
        "toolkit.speculation.steps.verify_greedy",
        lambda drafted, target: ([*drafted, target[-1]], len(drafted)),
    )
    weak = TABLE + random_table(1, VOCAB, order=2)
    report = check(drafter=lambda: DraftTargetDrafter(FakeTableModel(weak)))
    assert not report.passed
    assert len(report.bugs) > 5
    assert "this is a bug" in report.conclusion()


def test_an_engine_that_does_not_agree_with_itself_fails_the_control():
    class FakeMoodyModel(FakeTableModel):
        def forward(self, steps):
            outputs = super().forward(steps)
            noise = np.random.default_rng(len(self.forwards)).normal(size=VOCAB)
            return [StepOutput(output.logits + noise.astype(np.float32)) for output in outputs]

    report = check(FakeMoodyModel(TABLE))
    assert not report.passed
    assert "does not reproduce itself" in report.conclusion()


def test_a_text_that_ends_early_is_a_bug(monkeypatch):
    genuine = SpeculativeLoop.generate

    def cutting(self, requests):
        outputs = genuine(self, requests)
        if self._drafter:
            for output in outputs:
                del output.tokens[-1]
        return outputs

    monkeypatch.setattr(SpeculativeLoop, "generate", cutting)
    report = check()
    assert {(d.position, d.other_token, d.gap) for d in report.divergences} == {(19, None, None)}
    assert not report.passed


def test_without_any_draft_nothing_was_tested():
    report = check(drafter=NoDrafter)
    assert report.divergences == ()
    assert not report.passed
    assert "nothing was tested" in report.conclusion()


def test_the_report_is_json():
    found = Verification((check(FakeRoundingModel(0.3, 0.5)),), alpha=0.001)
    whole = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert whole["passed"] is False
    document = whole["checks"]["greedy"]
    assert "this is a bug" in document["conclusion"]
    assert document["divergences"][0]["verdict"] == "bug"
    assert document["domains"][0]["domain"] == "code"


def test_an_unknown_dtype_is_refused():
    with pytest.raises(InputError, match="'int8' is not one of bfloat16"):
        check(dtype="int8")


def test_drafts_that_always_fail_are_an_alarm_though_the_text_is_right():
    never = np.array(TABLE)
    never[:] = np.roll(TABLE, 1, axis=-1)  # another token number for everything
    report = check(drafter=lambda: DraftTargetDrafter(FakeTableModel(never)))
    assert report.divergences == ()
    assert report.uninformed
    assert not report.passed
    assert "the drafts are worthless" in report.conclusion()


def test_weak_drafts_are_no_alarm():
    weak = TABLE + random_table(1, VOCAB, order=2, spread=2.0)
    report = check(drafter=lambda: DraftTargetDrafter(FakeTableModel(weak)))
    assert 0 < report.counts.first_accepted < 0.8 * report.counts.first_drafts
    assert report.passed


def test_a_server_that_changes_during_the_run_is_not_blamed_on_speculation():
    class FakeUpdatedModel(FakeTableModel):
        """From its 150th pass on another model."""

        def forward(self, steps):
            if len(self.forwards) == 150:
                self.table = np.array(random_table(7, VOCAB, order=2, spread=2.0), np.float32)
            return super().forward(steps)

    target = FakeUpdatedModel(TABLE)
    report = check(target)
    assert len(target.forwards) > 150
    assert report.control
    assert "before and after speculation" in report.conclusion()


def test_a_recipes_grammar_holds_on_both_sides_and_for_the_judge():
    table = random_table(3, 7, order=2, spread=1.2)  # tiny_tokens and a row of padding
    grammar = guidance().compile(Guide("regex", "((a|b){3}abb)*((ab)*|b)"))
    target = FakeTableModel(table)

    def loop(speculate):
        return SpeculativeLoop(target, NGramDrafter() if speculate else None, Fixed(3 * speculate))

    subject = EngineSubject(
        target, loop, dtype="float32", stop_tokens=frozenset(), grammar=grammar, batch=2
    )
    asked = [
        Question(domain="g", id=str(i), text="", tokens=(i, 1, 0, 1, i), max_tokens=24)
        for i in range(3)
    ]
    assert check_equivalence(subject, asked).divergences == ()
    # `aa` may begin a text; of what may follow, the judge knows nothing but a and b.
    row = table[0, 0]
    gap = subject.gap(asked[0], (0, 0), (0, 1))
    assert gap.value == pytest.approx(max(row[:2]) - min(row[:2]), rel=1e-5)
    assert subject.gap(asked[0], (0, 0), (0, 6)) is None
