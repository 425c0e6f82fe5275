"""Adaptive lengths: which are scored, which meet the best fixed one, and what that decides."""

import json

import numpy as np
import pytest

from tests.measure.fake_loop import FakeClock
from tests.tuning.test_grid import grid
from tests.tuning.test_predict import times
from tests.tuning.test_results import recipe
from toolkit.measure.run import Conditions, measure_group
from toolkit.recipe.objective import Objective
from toolkit.recipe.schema import Sampling
from toolkit.speculation.draft_length import Adaptive, Confidence, Fixed
from toolkit.speculation.loop import Chunk
from toolkit.speculation.trace import DraftTrace, by_position
from toolkit.tuning.adaptive import (
    Trial,
    challenger_of,
    measure_pair,
    policies,
    promising,
    promising_tree,
    score,
    settled_on,
    try_out,
)
from toolkit.tuning.choose import choose
from toolkit.tuning.intervals import Interval
from toolkit.tuning.journal import Journal
from toolkit.tuning.predict import Predictor
from toolkit.tuning.trees import ChosenTree, ScoredTree, Trees
from toolkit.tuning.tuned_recipe import tuned_recipe


def test_every_shortest_goes_with_every_longest_that_is_longer():
    assert policies((4, 1, 2)) == [Adaptive(1, 2), Adaptive(1, 4), Adaptive(2, 4)]
    assert policies((1,)) == []


def test_a_drafter_that_knows_how_sure_it_is_may_stop_at_every_threshold():
    found = policies((4, 2), confident=True)
    assert found[:2] == [Adaptive(1, 2), Adaptive(1, 4)]
    assert [p for p in found if isinstance(p, Confidence)] == [
        Confidence(4, threshold) for threshold in (0.2, 0.4, 0.6, 0.8)
    ]


def predictor(plan, stands, sure=None):
    """Texts of 60 tokens whose drafts stand where `stands` says so."""
    accept = by_position(np.resize(stands, 60).astype(float), 8)
    traces = {
        (domain, prompt.id): DraftTrace(accept, np.full(60, 8), sure=sure)
        for domain, prompts in plan.domains.items()
        for prompt in prompts
    }
    # 10 ms a step and 1 ms for each token drafted, up to 4: far enough for a line to go on.
    return Predictor(traces, times(1), max_tokens=41, objective=Objective(), seed=0)


def test_a_text_that_changes_its_mood_suits_an_adaptive_length():
    plan = grid(4, batches=(1,), ks=(1, 2, 4), domains=("edit",))
    # Twenty tokens that every draft hits, then twenty that none does.
    found = predictor(plan, [1] * 20 + [0] * 20)
    cells = found.cells(plan.rounds(), {k: Fixed(k) for k in (0, 1, 2, 4)})
    scored = score(found, plan.rounds(), plan.ks)
    best = choose(cells)[0].best
    assert scored[1].policy.max_draft_len == 4
    assert scored[1].gain > best.speedup.value
    assert promising(scored, choose(cells)) == {1: (scored[1].policy, best.k)}


def test_a_drafter_that_knows_when_it_fails_does_best_to_stop():
    plan = grid(4, batches=(1,), ks=(1, 2, 4), domains=("edit",))
    stands = np.resize([1, 1, 0, 0, 0, 1, 0], 60).astype(float)
    sure = np.where(by_position(stands, 8) > 0, 0.9, 0.5)
    found = predictor(plan, stands, sure)
    [scored] = score(found, plan.rounds(), plan.ks).values()
    assert scored.policy == Confidence(4, 0.6)  # 0.8 does as well; the first of equals
    cell = next(cell for cell in scored.cells if cell.pooled)
    assert cell.draft_tokens == cell.accepted_tokens


def test_a_text_without_moods_does_not():
    plan = grid(4, batches=(1,), ks=(1, 2, 4), domains=("edit",))
    found = predictor(plan, [1])
    cells = found.cells(plan.rounds(), {k: Fixed(k) for k in (0, 1, 2, 4)})
    # Always accepted: beginning at half of the length can only lose.
    assert promising(score(found, plan.rounds(), plan.ks), choose(cells)) == {}


class FakePolicyLoop:
    """A token in each step, in 10 ms at a named draft length and in `adaptive` ms by policy."""

    def __init__(self, clock, adaptive):
        self.clock, self.adaptive, self.running, self.asked = clock, adaptive, {}, []

    def submit(self, request):
        self.asked.append(request.draft_len)
        self.running[len(self.asked)] = request
        return len(self.asked)

    def step(self):
        by_policy = any(request.draft_len is None for request in self.running.values())
        self.clock.pass_ms(self.adaptive if by_policy else 10)
        return [Chunk(request, [1], 0, 1, None) for request in self.running]

    def close(self):
        self.running = {}

    def forget(self, request):
        pass


@pytest.mark.parametrize(("adaptive", "won"), [(8, True), (10, False), (12, False)])
def test_both_meet_in_the_same_rounds_and_a_second_look_measures_nothing(
    tmp_path, monkeypatch, adaptive, won
):
    clock = FakeClock()
    monkeypatch.setattr("toolkit.tuning.adaptive.measure_group", timed_by(clock))
    plan = grid(4, batches=(1,), ks=(2, 4), domains=("edit",))
    loops = {}

    def loop(challenger):
        measured.append(challenger)
        return loops.setdefault(challenger, FakePolicyLoop(clock, adaptive))

    def trials():
        conditions = Conditions(max_tokens=6, sampling=Sampling(), stop_tokens=frozenset())
        contest = {1: (Adaptive(1, 4), 2)}

        def pairs(pairings, keep):
            for pairing in pairings:
                keep(pairing.round, measure_pair(pairing, loop, conditions, 0))

        return try_out(plan.rounds(), contest, pairs, Journal(tmp_path, {}), 0)

    measured = []
    [trial] = trials()
    assert (trial.batch_size, trial.fixed, trial.rounds) == (1, 2, 4)
    assert trial.gain.value == pytest.approx(10 / adaptive)
    assert trial.won == won
    assert set(measured) == {None, Adaptive(1, 4)}
    assert set(loops[None].asked) == {2}
    assert set(loops[Adaptive(1, 4)].asked) == {None}
    count = len(measured)
    assert trials() == [trial]
    assert len(measured) == count


def timed_by(clock):
    def measured(*given, **options):
        return measure_group(*given, **options, clock=clock)

    return measured


def trial(batch, low, high, ends=(1.1, 1.3)):
    return Trial(batch, Adaptive(low, high), 4, 4, Interval(1.2, *ends))


def test_one_policy_must_win_everywhere_to_be_deployed():
    both = [trial(1, 1, 8), trial(4, 1, 8)]
    assert settled_on(both, [1, 4]) == Adaptive(1, 8)
    assert settled_on(both, [1, 4, 8]) is None
    assert settled_on([trial(1, 1, 8), trial(4, 2, 8)], [1, 4]) is None
    assert settled_on([trial(1, 1, 8), trial(4, 1, 8, (0.9, 1.4))], [1, 4]) is None


def test_of_two_that_won_everywhere_the_faster_one_is_deployed():
    tree = ChosenTree(((0,), (1,), (0, 0)))
    faster = Trial(1, tree, 4, 4, Interval(1.3, 1.2, 1.4))
    assert settled_on([trial(1, 1, 8), faster], [1]) == tree
    assert str(faster) == (
        "batch 1: the best tree of 3 nodes is 1.30x as fast as k = 4 (1.20 to 1.40)"
    )
    speculation = {"drafter": "medusa", "heads": {"checkpoint": "o/h"}, "max_draft_len": 63}
    tuned = tuned_recipe(recipe(speculation=speculation), [(1, 4)], tree).speculation
    assert (tuned.max_draft_len, tuned.medusa_choices.choices) == (3, tree.choices)


def test_a_tree_meets_the_recipes_own_where_other_texts_promise_more():
    plan = grid(4, batches=(1,), ks=(1, 2, 4), domains=("edit",))
    cells = predictor(plan, [1]).cells(plan.rounds(), {k: Fixed(k) for k in (0, 4)})
    own = ScoredTree(((0,), (1,)), 1.4, 1.4)
    for expected, meets in [(1.5, {1: (ChosenTree(((0,), (0, 0))), 4)}), (1.4, {})]:
        best = ScoredTree(((0,), (0, 0)), 1.6, expected)
        trees = Trees("medusa_choices", own, (best,))
        assert promising_tree(trees, choose(cells)) == meets
    assert promising_tree(None, choose(cells)) == {}


def test_the_tuned_recipe_carries_it():
    tuned = tuned_recipe(recipe(), [(1, 4)], Adaptive(2, 8)).speculation
    assert (tuned.max_draft_len, tuned.draft_length.policy, tuned.draft_length.min) == (
        8, "adaptive", 2,
    )  # fmt: skip
    sure = tuned_recipe(recipe(), [(1, 4)], Confidence(6, 0.6)).speculation
    assert (sure.max_draft_len, sure.draft_length.policy, sure.draft_length.threshold) == (
        6, "confidence", 0.6,
    )  # fmt: skip


@pytest.mark.parametrize(
    "challenger",
    [Adaptive(1, 8), Confidence(8, 0.4), ChosenTree(((0,), (1,), (0, 0)))],
)
def test_a_challenger_goes_to_another_machine_and_is_the_same(challenger):
    assert challenger_of(json.loads(json.dumps(challenger.to_json()))) == challenger
