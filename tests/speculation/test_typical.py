"""Typical acceptance, with bounds and paths worked out by hand."""

import numpy as np
import pytest

from tests.speculation.table_model import FakeTableModel
from toolkit.recipe.schema import HeadSource, ModelSpec
from toolkit.speculation.draft_length import Fixed
from toolkit.speculation.drafters.draft_target import DraftTargetDrafter, DraftTargetSpeculation
from toolkit.speculation.drafters.eagle import EagleSpeculation
from toolkit.speculation.drafters.medusa import MedusaSpeculation
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.loop import Request, SpeculativeLoop
from toolkit.speculation.sampling import Role
from toolkit.speculation.typical import acceptance_bound, lossy, verify_typical

HALVES = np.array([1 / 2, 1 / 4, 1 / 8, 1 / 8])


class TestBound:
    """min(epsilon, sqrt(epsilon) exp(-H))"""

    @pytest.mark.parametrize(
        ("row", "epsilon", "bound"),
        [
            # H = 1/2 ln 2 + 1/4 ln 4 + 2/8 ln 8 = 1.75 ln 2, so exp(-H) = 2 ** -1.75 = 0.2973.
            (HALVES, 0.25, 0.5 * 2**-1.75),  # 0.1487 < 0.25
            (HALVES, 0.04, 0.04),  # 0.2 x 0.2973 = 0.0595 > 0.04
            # Of n equally likely tokens exp(-H) = 1 / n.
            (np.full(8, 1 / 8), 0.09, 0.3 / 8),
            # Nothing is uncertain: exp(-H) = 1, and sqrt(epsilon) > epsilon.
            (np.array([0.0, 1.0, 0.0]), 0.09, 0.09),
            (HALVES, 0.0, 0.0),
        ],
    )
    def test_by_hand(self, row, epsilon, bound):
        assert acceptance_bound(row, epsilon) == pytest.approx(bound, abs=1e-12)


def numbers(u=0.0):
    """Records what was asked for; every number is `u`."""
    asked = []

    def number(depth, role, sibling=0):
        asked.append((depth, role, sibling))
        return u

    return number, asked


class TestVerify:
    """Rows of the same halves everywhere; with epsilon 1/4, tokens 0 and 1 exceed 0.1487."""

    def verify(self, tokens, parents, rows=None, epsilon=0.25, u=0.0):
        number, asked = numbers(u)
        rows = np.tile(HALVES, (len(tokens) + 1, 1)) if rows is None else rows
        found = verify_typical(tokens, parents, rows, epsilon, number)
        assert asked == [(len(found[1]), Role.EMIT, 0)]  # nothing but the last token is drawn
        return found

    def test_a_chain_stands_up_to_its_first_unlikely_token(self):
        assert self.verify([1, 0, 2, 0], (-1, 0, 1, 2)) == ([1, 0, 0], [0, 1])

    def test_a_likely_token_is_accepted_without_chance(self):
        for u in (0.0, 0.5, 0.999):
            assert self.verify([1], (-1,), u=u)[1] == [0]

    def test_the_last_token_is_drawn_from_the_row_behind_the_path(self):
        rows = np.array([HALVES, [0, 0, 1, 0], HALVES])
        assert self.verify([1, 3], (-1, 0), rows) == ([1, 2], [0])

    def test_nothing_drafted_is_plain_sampling(self):
        # Cumulated 1/2, 3/4, 7/8, 1.
        assert self.verify([], (), u=0.8) == ([2], [])

    def test_the_longest_path_of_a_tree(self):
        #     text
        #    0    1      tokens 0 1 / under 0: 2 (unlikely), under 1: 1
        #    2    3
        assert self.verify([0, 1, 2, 1], (-1, -1, 0, 1)) == ([1, 1, 0], [1, 3])

    def test_of_equally_long_paths_the_likeliest(self):
        # 1 then 1: 1/4 x 1/4; 0 then 0: 1/2 x 1/2.
        assert self.verify([1, 0, 1, 0], (-1, -1, 0, 1))[1] == [1, 3]

    def test_of_equally_likely_ones_the_first(self):
        rows = np.tile([0.25] * 4, (3, 1))
        assert self.verify([3, 1], (-1, -1), rows, 0.09)[1] == [0]

    def test_below_a_token_that_falls_nothing_stands(self):
        assert self.verify([2, 0, 0], (-1, 0, 1))[1] == []

    def test_exactly_the_bound_is_not_enough(self):
        # H(3/4, 1/4) = 0.5623; 0.5 exp(-H) = 0.285, so epsilon = 1/4 itself is the bound.
        rows = np.tile([0.75, 0.25], (2, 1))
        assert self.verify([1], (-1,), rows) == ([0], [])

    def test_with_epsilon_0_an_impossible_token_still_falls(self):
        rows = np.tile([0.0, 1.0], (2, 1))
        assert self.verify([0], (-1,), rows, 0.0) == ([1], [])


# Whatever came before: 1/2, 1/4, 1/4. The draft's favourite is token 1.
TARGET = np.log([[1 / 2, 1 / 4, 1 / 4]] * 3)
DRAFT = np.log([[1 / 4, 1 / 2, 1 / 4]] * 3)


def loop(epsilon, draft_len=2):
    drafter = DraftTargetDrafter(FakeTableModel(DRAFT, max_batch_size=64))
    target = FakeTableModel(TARGET, max_batch_size=64)
    return SpeculativeLoop(target, drafter, Fixed(draft_len), posterior_threshold=epsilon)


def sampled(count=400, tokens=4):
    return [Request((0,), tokens, SamplingParams(1.0, seed=seed)) for seed in range(count)]


class TestLoop:
    def test_drafts_are_the_likeliest_and_stand_every_time(self):
        """H = 1.04, so the bound is min(0.09, 0.3 x 0.353) = 0.09, below token 1's quarter.

        The first of four tokens comes from prefill, then two drafts stand and a bonus follows: of
        the 9 middles that the target would say, one comes out.
        """
        outputs = loop(0.09).generate(sampled())
        assert {tuple(o.tokens[1:3]) for o in outputs} == {(1, 1)}
        assert all(o.stats.accepted_per_step == [2] for o in outputs)
        # What the target draws itself has its own distribution: within 5 sigma of 200 of 400.
        for place in (0, 3):
            assert abs(sum(o.tokens[place] == 0 for o in outputs) - 200) < 50

    def test_a_higher_bound_refuses_them(self):
        # min(0.9, 0.949 x 0.353) = 0.335 > 1/4
        outputs = loop(0.9).generate(sampled(count=50))
        assert sum(o.stats.accepted_tokens for o in outputs) == 0

    def test_greedy_requests_stay_exact(self):
        requests = [Request((0,), 12)]
        [plain] = SpeculativeLoop(FakeTableModel(TARGET), None, Fixed(0)).generate(requests)
        [output] = loop(0.09).generate(requests)
        assert output.tokens == plain.tokens

    def test_plain_decoding_draws_the_same_tokens(self):
        requests = sampled(count=20, tokens=8)
        plain = SpeculativeLoop(FakeTableModel(TARGET), None, Fixed(0))
        same = loop(0.09, draft_len=0)
        assert [o.tokens for o in same.generate(requests)] == [
            o.tokens for o in plain.generate(requests)
        ]

    def test_alone_or_in_a_batch_a_seeded_text_is_the_same(self):
        requests = sampled(count=8, tokens=9)
        together = loop(0.09).generate(requests)
        alone = [loop(0.09).generate([request])[0] for request in requests]
        assert [o.tokens for o in together] == [o.tokens for o in alone]


class TestWords:
    def test_only_a_recipe_that_names_it_is_lossy(self):
        heads = HeadSource(checkpoint="heads")
        draft = DraftTargetSpeculation(draft=ModelSpec(checkpoint="draft"))
        for options in (MedusaSpeculation(heads=heads), EagleSpeculation(heads=heads), draft):
            assert lossy(options) is None

    @pytest.mark.parametrize("kind", [MedusaSpeculation, EagleSpeculation])
    def test_it_says_so_and_why(self, kind):
        options = kind(heads=HeadSource(checkpoint="heads"), posterior_threshold=0.09)
        assert lossy(options) == (
            "lossy: output is not the target's distribution (typical acceptance, "
            "speculation.posterior_threshold 0.09)"
        )
