import numpy as np
import pytest

from tests.speculation.table_model import FakeTableModel
from tests.speculation.test_distribution import LENGTH, PROMPT, p_of
from tests.speculation.test_distribution import TARGET as SMALL_TARGET
from tests.speculation.test_loop import TARGET, counting_table, plain, prompts, texts
from toolkit.speculation.draft_length import Adaptive, Fixed
from toolkit.speculation.drafters.lookahead import LookaheadDrafter, NGramPool, tree_of
from toolkit.speculation.interfaces import DraftRequest, SamplingParams
from toolkit.speculation.loop import Request, SpeculativeLoop


def test_the_pool_keeps_the_latest_of_each_first_token():
    pool = NGramPool(3, per_token=2)
    pool.add_text([1, 2, 3, 1, 4, 5, 1, 2, 3])
    assert pool.tails(1) == [(2, 3), (4, 5)]
    pool.add([1, 9, 9])
    assert pool.tails(1) == [(9, 9), (2, 3)]
    assert pool.tails(8) == []


def test_common_beginnings_are_one_node():
    assert tree_of([(1, 2), (1, 3), (4, 2)]) == ([1, 2, 3, 4, 2], [-1, 0, 0, -1, 3])


class TestTree:
    """Window 3, n-gram 3: columns (last, g), (a, b), (c, d) with a chain last -> a -> c."""

    def proposal(self):
        drafter = LookaheadDrafter(3, 3, 2)
        drafter.begin(0, [])
        window = drafter._windows[0]
        window.levels = [[0, 11, 12], [20, 21, 22]]
        window.pool.add([7, 8, 9])
        [proposal] = drafter.propose([DraftRequest(0, [5, 7], 2, SamplingParams())])
        return drafter, proposal

    def test_guesses_hang_below_the_text_and_candidates_beside_them(self):
        _, proposal = self.proposal()
        assert proposal.tokens == [8, 9, 20, 11, 21, 12, 22]
        #                   n-gram  8  9 | 20  11 21 12 22
        assert proposal.parents == (-1, 0, -1, -1, 3, 3, 5)
        assert (proposal.probes, proposal.drafted, proposal.depth) == (5, 2, 2)

    def test_as_many_nodes_as_tensorrt_llm_counts(self):
        drafter = LookaheadDrafter(7, 7, 7)
        drafter.begin(0, [1])
        [proposal] = drafter.propose([DraftRequest(0, [1], 6, SamplingParams())])
        # Without n-grams in the pool: N - 2 + (W - 1)(N - 1).
        assert len(proposal.tokens) == proposal.probes == 5 + 6 * 6

    def test_the_targets_choices_make_n_grams_and_the_next_window(self):
        drafter, _ = self.proposal()
        # Rows: text, 8, 9, 20, 11, 21, 12, 22; after 20, 21 and 22 it would say 30, 31 and 32.
        drafter.chosen(0, [0, 0, 0, 30, 0, 31, 0, 32])
        window = drafter._windows[0]
        assert window.levels == [[20, 21, 22], [30, 31, 32]]
        assert window.pool.tails(7) == [(20, 30), (8, 9)]
        assert window.pool.tails(11) == [(21, 31)]
        assert window.pool.tails(12) == [(22, 32)]

    def test_a_window_that_was_cut_off_stays(self):
        drafter, _ = self.proposal()
        drafter.chosen(0, [0, 0, 0, 30])
        assert drafter._windows[0].levels == [[0, 11, 12], [20, 21, 22]]


@pytest.mark.parametrize("policy", [Fixed(3), Adaptive(1, 3)])
@pytest.mark.parametrize("sizes", [(4, 4, 4), (3, 2, 5)])
def test_greedy_text_equals_plain_text_in_ragged_batches(policy, sizes):
    requests = [Request(prompt, 64) for prompt in prompts(12)]
    target = FakeTableModel(TARGET, max_batch_size=4, max_seq_len=110)
    outputs = SpeculativeLoop(target, LookaheadDrafter(*sizes), policy).generate(requests)
    assert texts(outputs) == plain(requests)
    assert sum(output.stats.accepted_tokens for output in outputs) > 40
    assert target.cache == {}


def test_guesses_come_true_without_any_earlier_copy():
    """0 1 2 3 ... never repeats an n-gram, so only Jacobi iteration can draft it."""
    [output] = SpeculativeLoop(
        FakeTableModel(counting_table()), LookaheadDrafter(6, 4, 6), Fixed(3)
    ).generate([Request((12, 6, 0), 18)])
    assert output.tokens == list(range(1, 19))
    assert output.stats.accepted_tokens > 4


def test_sampled_text_has_the_targets_distribution():
    count = 10_000
    loop = SpeculativeLoop(
        FakeTableModel(SMALL_TARGET, max_batch_size=64), LookaheadDrafter(3, 3, 3), Fixed(2)
    )
    outputs = loop.generate(
        [Request(PROMPT, LENGTH, SamplingParams(1.0, seed=seed)) for seed in range(count)]
    )
    assert np.mean([output.stats.accepted_tokens for output in outputs]) > 0.3
    assert p_of(outputs, SamplingParams(1.0)) > 0.001
