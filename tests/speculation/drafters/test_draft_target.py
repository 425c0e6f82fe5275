import numpy as np
import pytest

from tests.speculation.table_model import FakeTableModel, random_table
from toolkit.recipe.schema import ModelSpec
from toolkit.registry import DRAFTERS
from toolkit.speculation.draft_length import Fixed
from toolkit.speculation.drafters.draft_target import DraftTargetDrafter, DraftTargetSpeculation
from toolkit.speculation.interfaces import DraftRequest, SamplingParams
from toolkit.speculation.loop import Request, SpeculativeLoop

VOCAB = 8
TARGET = random_table(0, VOCAB, spread=2.0)
DRAFT = TARGET + random_table(1, VOCAB)
GREEDY, SAMPLED = SamplingParams(), SamplingParams(1.0, seed=4)
OPTIONS = DraftTargetSpeculation(draft=ModelSpec(checkpoint="draft"))


def padded(table, size, value):
    """The table of a model with a larger vocabulary; its extra tokens have these logits."""
    result = np.full((size, size), value, dtype=np.float64)
    result[: len(table), : len(table)] = table
    return result


def test_the_draft_model_is_asked_for_by_role():
    target = ModelSpec(checkpoint="target")
    assert DRAFTERS["draft_target"].models(OPTIONS, target) == {"draft": OPTIONS.draft}


def test_it_drafts_what_the_draft_model_would_say():
    draft = FakeTableModel(DRAFT)
    drafter = DraftTargetDrafter.create(OPTIONS, {"draft": draft})
    drafter.begin(0, [1, 2])
    [proposal] = drafter.propose([DraftRequest(0, [1, 2, 3], 3, GREEDY)])
    first = int(DRAFT[3].argmax())
    second = int(DRAFT[first].argmax())
    assert proposal.tokens == [first, second, int(DRAFT[second].argmax())]
    assert proposal.probs is None


def test_a_sampled_proposal_brings_the_filtered_distributions_it_was_drawn_from():
    drafter = DraftTargetDrafter(FakeTableModel(DRAFT))
    drafter.begin(0, [1, 2])
    sampling = SamplingParams(0.7, top_k=3, seed=9)
    [proposal] = drafter.propose([DraftRequest(0, [1, 2, 3], 2, sampling)])
    assert proposal.probs.shape == (2, VOCAB)
    np.testing.assert_allclose(proposal.probs.sum(axis=1), 1.0)
    assert (np.count_nonzero(proposal.probs, axis=1) == 3).all()
    weights = np.exp(DRAFT[3] / 0.7) * (DRAFT[3] >= np.sort(DRAFT[3])[-3])
    np.testing.assert_allclose(proposal.probs[0], weights / weights.sum(), rtol=1e-5)
    assert all(proposal.probs[i, token] > 0 for i, token in enumerate(proposal.tokens))


def test_a_batch_is_drafted_with_one_pass_per_depth():
    draft = FakeTableModel(DRAFT)
    drafter = DraftTargetDrafter(draft)
    for seq in range(3):
        drafter.begin(seq, [seq])
    draft.forwards.clear()
    requests = [DraftRequest(seq, [seq, 1], seq + 1, SAMPLED) for seq in range(3)]
    proposals = drafter.propose(requests)
    assert [len(proposal.tokens) for proposal in proposals] == [1, 2, 3]
    assert draft.forwards == [[1, 1, 1], [1, 1], [1]]


def test_after_a_step_the_draft_holds_exactly_the_accepted_text():
    draft = FakeTableModel(DRAFT)
    drafter = DraftTargetDrafter(draft)
    drafter.begin(0, [1, 2])
    [proposal] = drafter.propose([DraftRequest(0, [1, 2, 3], 4, GREEDY)])
    [cache] = draft.cache.values()
    assert cache == [1, 2, 3, *proposal.tokens[:3]]  # it never read its last draft token
    drafter.accept(0, [*proposal.tokens[:2], 7], 2)
    assert cache == [1, 2, 3, *proposal.tokens[:2]]
    # All accepted: the last draft token and the bonus token are read with the next proposal.
    text = [1, 2, 3, *proposal.tokens[:2], 7]
    [proposal] = drafter.propose([DraftRequest(0, text, 2, GREEDY)])
    drafter.accept(0, [*proposal.tokens, 5], 2)
    draft.forwards.clear()
    drafter.propose([DraftRequest(0, [*text, *proposal.tokens, 5], 1, GREEDY)])
    assert draft.forwards == [[2]]
    assert cache == [*text, *proposal.tokens, 5]


def test_a_proposal_that_was_broken_off_leaves_nothing_behind():
    draft = FakeTableModel(DRAFT)
    drafter = DraftTargetDrafter(draft)
    drafter.begin(0, [1, 2])
    request = DraftRequest(0, [1, 2, 3], 4, GREEDY)
    [first] = drafter.propose([request])
    [again] = drafter.propose([request])  # nobody accepted or refused the first one
    assert first.tokens == again.tokens


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_larger_draft_vocabulary_never_leaves_the_targets(sampling):
    # The padding would be the draft's favourite by far.
    draft = FakeTableModel(padded(DRAFT, VOCAB + 4, 50.0))
    requests = [
        Request((1, seed), 20, SamplingParams(sampling.temperature, seed=seed)) for seed in range(8)
    ]
    padded_drafter = DraftTargetDrafter.create(
        OPTIONS, {"draft": draft, "target": FakeTableModel(TARGET)}
    )
    same = DraftTargetDrafter(FakeTableModel(DRAFT))
    outputs, expected = (
        SpeculativeLoop(FakeTableModel(TARGET), drafter, Fixed(3)).generate(requests)
        for drafter in (padded_drafter, same)
    )
    assert [o.tokens for o in outputs] == [o.tokens for o in expected]
    assert [o.stats.accepted_per_step for o in outputs] == [
        o.stats.accepted_per_step for o in expected
    ]


def test_a_smaller_draft_vocabulary_has_probability_zero_for_the_rest():
    target = FakeTableModel(padded(TARGET, VOCAB + 4, -50.0))
    drafter = DraftTargetDrafter.create(OPTIONS, {"draft": FakeTableModel(DRAFT), "target": target})
    drafter.begin(0, [1])
    [proposal] = drafter.propose([DraftRequest(0, [1, 2], 2, SAMPLED)])
    assert proposal.probs.shape == (2, VOCAB + 4)
    assert (proposal.probs[:, VOCAB:] == 0).all()
    drafter.end(0)
    [output] = SpeculativeLoop(target, drafter, Fixed(2)).generate([Request((1,), 20, SAMPLED)])
    assert output.stats.accepted_tokens > 0


def test_a_draft_with_a_shorter_context_stops_drafting_and_the_text_goes_on():
    requests = [Request((1, 2), 60), Request((1,) * 30, 10)]
    draft = FakeTableModel(DRAFT, max_seq_len=20)
    loop = SpeculativeLoop(FakeTableModel(TARGET), DraftTargetDrafter(draft), Fixed(4))
    outputs = loop.generate(requests)
    plain = SpeculativeLoop(FakeTableModel(TARGET), None, Fixed(0)).generate(requests)
    assert [o.tokens for o in outputs] == [o.tokens for o in plain]
    assert outputs[0].stats.draft_tokens > 0
    assert outputs[1].stats.draft_tokens == 0
    assert draft.cache == {}


def test_a_long_prompt_is_read_in_pieces():
    draft = FakeTableModel(DRAFT)
    DraftTargetDrafter(draft).begin(0, [1] * 1200)
    assert draft.forwards == [[512], [512], [176]]
