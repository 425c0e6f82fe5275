from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.recipe.schema import DraftLength, Speculation
from toolkit.speculation.draft_length import (
    POLICIES,
    Adaptive,
    Fixed,
    Schedule,
    draft_length_policy,
)


def options(policy, **lengths):
    return Speculation(
        drafter="none", max_draft_len=6, draft_length=DraftLength(policy=policy, **lengths)
    )


def test_the_recipe_names_the_policy():
    assert draft_length_policy(options("fixed")) == Fixed(6)
    assert draft_length_policy(options("adaptive", min=2)) == Adaptive(2, 6)
    assert draft_length_policy(options("adaptive", min=9)) == Adaptive(6, 6)


def test_every_policy_that_a_recipe_may_name_exists():
    assert set(POLICIES) == set(DraftLength.model_fields["policy"].annotation.__args__)


def test_fixed_never_moves():
    assert Fixed(4).first() == 4
    assert Fixed(4).following(4, 4, 0) == Fixed(4).following(4, 4, 4) == 4


@pytest.mark.parametrize(("active", "now"), [(1, 6), (2, 6), (3, 2), (7, 2), (8, 0), (99, 0)])
def test_a_schedule_goes_by_the_number_of_active_requests(active, now):
    entries = [{"batch": 2, "draft_len": 6}, {"batch": 3, "draft_len": 2}]
    entries += [{"batch": 8, "draft_len": 0}]
    policy = draft_length_policy(options("schedule", schedule=entries))
    assert policy == Schedule(((2, 6), (3, 2), (8, 0)))
    assert policy.first() == 6
    assert policy.now(6, active) == now  # below the smallest entry: the smallest entry


@pytest.mark.parametrize(
    ("draft_len", "drafted", "accepted", "following"),
    [
        (4, 4, 4, 6),  # full acceptance: two more
        (7, 7, 7, 8),  # up to the limit
        (4, 4, 1, 3),  # early rejection: one less
        (1, 1, 0, 1),  # down to the limit
        (4, 4, 2, 4),  # half of it stood
        (4, 4, 3, 4),
        (4, 0, 0, 4),  # nothing drafted, nothing learnt
        (6, 2, 2, 6),  # the drafter had no more to offer: no reason to ask for more
        (3, 2, 2, 4),
    ],
)
def test_adaptive_grows_on_full_acceptance_and_shrinks_on_early_rejection(
    draft_len, drafted, accepted, following
):
    assert Adaptive(1, 8).following(draft_len, drafted, accepted) == following


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40))
def test_adaptive_stays_within_its_limits(steps):
    policy = Adaptive(2, 7)
    draft_len = policy.first()
    for drafted, accepted in steps:
        assert 2 <= draft_len <= 7
        drafted = min(drafted, draft_len)
        draft_len = policy.following(draft_len, drafted, min(accepted, drafted))


def test_keeping_only_sure_tokens_after_drawing_them_would_bias_the_text():
    """Why `confidence` looks at the distribution and never at the drawn token: exact, by hand."""
    target, draft, threshold = [Fraction(1, 2)] * 2, [Fraction(9, 10), Fraction(1, 10)], 0.5
    emitted = [Fraction(0), Fraction(0)]
    for token, chance in enumerate(draft):
        if chance < threshold:  # thrown away after it was drawn: the target draws instead
            for other in (0, 1):
                emitted[other] += chance * target[other]
            continue
        accept = min(Fraction(1), target[token] / chance)
        emitted[token] += chance * accept
        emitted[1 - token] += chance * (1 - accept)  # the residual is all on the other one
    assert emitted == [Fraction(11, 20), Fraction(9, 20)]


def test_confidence_is_the_recipes():
    options = Speculation(
        drafter="draft_target",
        max_draft_len=6,
        draft_length={"policy": "confidence", "threshold": 0.3},
    )
    policy = draft_length_policy(options)
    assert (policy.first(), policy.confidence) == (6, 0.3)
    assert policy.following(6, 2, 0) == 6
