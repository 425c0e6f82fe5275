"""What became of each token, and which answers are shown."""

from tests.measure.made_records import WORKED, record
from tests.tuning.made_runs import rounds_of
from tests.tuning.test_grid import grid
from tests.tuning.test_results import recipe
from toolkit.tuning.figures_tokens import examples, tokens_of
from toolkit.tuning.results import evaluate
from toolkit.tuning.session import Outcome


def test_every_token_of_the_worked_trace_has_its_kind_and_time():
    # Three of four stood; none; two: each time one more, recovered because a draft was refused.
    assert tokens_of(WORKED) == [
        (40.0, 2, "accepted"), (40.0, 3, "accepted"), (40.0, 4, "accepted"), (40.0, 5, "recovered"),
        (80.0, 6, "recovered"),
        (120.0, 7, "accepted"), (120.0, 8, "accepted"), (120.0, 9, "recovered"),
    ]  # fmt: skip


def test_a_whole_draft_is_followed_by_the_bonus_token_and_a_cut_step_has_none():
    whole = record(
        k=2, output_tokens=6, verify_steps=2, drafted_per_step=(2, 2), accepted_per_step=(2, 2)
    )
    kinds = [kind for _, _, kind in tokens_of(whole)]
    assert kinds == ["accepted", "accepted", "bonus", "accepted", "accepted"]


def test_the_answer_with_the_median_gain_is_shown_beside_plain_decoding():
    rounds = rounds_of(*[{0: [10.0], 2: [9.0], 4: [tpot]} for tpot in (5.0, 2.0, 20.0)])
    plan = grid(3, batches=(1,), ks=(2, 4), domains=("edit",))
    found = evaluate(recipe(), plan, Outcome(rounds, 3, 0, interrupted=False), {}, {})
    [(run, plain)] = examples(found)
    best = found.choices[0].best.k
    assert (run.k, plain.k) == (best, 0)
    assert run.prompt_id == plain.prompt_id
    assert run.e2e_ns == 100_000_000 + 10 * {2: 9_000_000, 4: 5_000_000}[best]
