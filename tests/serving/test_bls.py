"""The loop over two served models says what the loop in one process says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving.fakes import FakeServedDraft, FakeServedTarget, draft_engine, target_engine
from tests.speculation.table_model import FakeTableModel, random_table
from toolkit.errors import InputError
from toolkit.serving.bls import BlsLoop, LocalDraft
from toolkit.speculation.draft_length import Adaptive, Fixed
from toolkit.speculation.drafters.draft_target import DraftTargetDrafter
from toolkit.speculation.drafters.ngram import NGramDrafter
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.loop import SpeculativeLoop
from toolkit.speculation.request import GREEDY, Request

VOCAB, MAX_SEQ_LEN = 9, 200
TARGET = random_table(1, VOCAB, order=1, spread=1.5)
DRAFT = TARGET + 0.8 * random_table(2, VOCAB, order=1)


def decode(tokens):
    return "".join("abcdefghi"[token] for token in tokens)


def target_model() -> FakeTableModel:
    return FakeTableModel(TARGET, max_seq_len=MAX_SEQ_LEN)


def draft_model() -> FakeTableModel:
    return FakeTableModel(DRAFT, max_seq_len=MAX_SEQ_LEN)


def in_one_process(request, policy, drafter):
    loop = SpeculativeLoop(target_model(), drafter, policy, decode=decode)
    output = loop.generate([request])[0]
    return output.tokens, output.stats.draft_tokens, output.stats.accepted_tokens


class Deployment:
    """Two engines and the loop over them."""

    def __init__(self, policy, *, logits: bool = True, fail_after: int | None = None) -> None:
        self.loop = BlsLoop(policy, MAX_SEQ_LEN, decode)
        self.target, self.draft = target_engine(target_model()), draft_engine(draft_model())
        self.logits, self.fail_after = logits, fail_after
        self.failures = []

    def chunks(self, request, *, local=None, burst=1, cancelled=lambda: False):
        served = FakeServedTarget(self.target, request)
        source = local or FakeServedDraft(
            self.draft, request, logits=self.logits, fail_after=self.fail_after
        )
        return self.loop.run(
            request,
            served,
            source,
            burst=burst,
            cancelled=cancelled,
            draft_failed=self.failures.append,
        )

    def run(self, request, *, local=None):
        chunks = list(self.chunks(request, local=local))
        return (
            [token for chunk in chunks for token in chunk.tokens],
            sum(chunk.drafted for chunk in chunks),
            sum(chunk.accepted for chunk in chunks),
        )

    @property
    def held(self) -> int:
        return self.target.pool.active + self.draft.pool.active


samplings = st.one_of(
    st.just(GREEDY),
    st.builds(
        SamplingParams,
        st.sampled_from([0.5, 1.0, 1.7]),
        st.sampled_from([0, 3]),
        st.sampled_from([1.0, 0.8]),
        st.integers(0, 2**63 - 1),
    ),
)
policies = st.one_of(st.builds(Fixed, st.integers(1, 6)), st.just(Adaptive(1, 6)))
requests = st.builds(
    Request,
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6).map(tuple),
    st.integers(1, 40),
    samplings,
    st.sampled_from([frozenset(), frozenset({3}), frozenset({3, 5})]),
    st.sampled_from([(), ("ab",), ("cc", "bad")]),
    st.sampled_from([None, 0, 1, 4]),
)


@given(request=requests, policy=policies)
@settings(max_examples=150, deadline=None)
def test_a_served_draft_gives_the_same_tokens_and_counts(request, policy):
    deployment = Deployment(policy)
    wanted = in_one_process(request, policy, DraftTargetDrafter(draft_model()))
    assert deployment.run(request) == wanted
    assert deployment.held == 0


@given(request=requests, policy=policies)
@settings(max_examples=150, deadline=None)
def test_a_local_drafter_gives_the_same_tokens_and_counts(request, policy):
    local = LocalDraft(NGramDrafter(), request.prompt, request.sampling)
    wanted = in_one_process(request, policy, NGramDrafter())
    assert Deployment(policy).run(request, local=local) == wanted


@given(request=requests, burst=st.integers(2, 9))
@settings(max_examples=50, deadline=None)
def test_plain_text_does_not_depend_on_the_size_of_a_call(request, burst):
    plain = replace(request, draft_len=0)
    wanted = in_one_process(plain, Fixed(2), None)[0]
    chunks = Deployment(Fixed(2)).chunks(plain, burst=burst)
    assert [token for chunk in chunks for token in chunk.tokens] == wanted


@given(request=requests.filter(lambda r: r.sampling.greedy))
@settings(max_examples=50, deadline=None)
def test_greedy_text_is_plain_text_whether_or_not_logits_travel(request):
    plain = SpeculativeLoop(target_model(), None, Fixed(0), decode=decode).generate([request])[0]
    for logits in (True, False):
        assert Deployment(Fixed(3), logits=logits).run(request)[0] == plain.tokens


def test_the_first_token_comes_from_the_prompt_alone():
    deployment = Deployment(Fixed(4))
    request = Request((1, 2), 12)
    chunks = list(deployment.chunks(request))
    assert (chunks[0].drafted, len(chunks[0].tokens)) == (0, 1)
    assert all(chunk.drafted for chunk in chunks[1:-1])


def test_the_draft_never_outgrows_what_may_still_be_said():
    deployment = Deployment(Fixed(6))
    chunks = list(deployment.chunks(Request((1, 2), 5)))
    assert sum(len(chunk.tokens) for chunk in chunks) == 5
    assert chunks[-1].finish_reason == "length"


def test_a_request_is_cut_at_the_longest_sequence():
    request = Request(tuple([1] * (MAX_SEQ_LEN - 3)), 50)
    tokens, _, _ = Deployment(Fixed(6)).run(request)
    assert len(tokens) == 3


def test_a_prompt_that_leaves_no_room_is_refused():
    with pytest.raises(InputError, match="max_seq_len"):
        Deployment(Fixed(2)).run(Request(tuple([1] * MAX_SEQ_LEN), 5))


@pytest.mark.parametrize("fail_after", [0, 1, 3])
def test_without_its_draft_the_request_goes_on_plainly(fail_after):
    deployment = Deployment(Fixed(3), fail_after=fail_after)
    request = Request((1, 2), 30)
    plain = SpeculativeLoop(target_model(), None, Fixed(0)).generate([request])[0]
    assert deployment.run(request)[0] == plain.tokens
    assert len(deployment.failures) == 1
    assert deployment.held == 0


@pytest.mark.parametrize("draft_len", [None, 0])
def test_cancelling_ends_the_request_and_frees_both_models(draft_len):
    deployment = Deployment(Fixed(2))
    request = Request((1, 2), 150, draft_len=draft_len)
    seen = []
    for chunk in deployment.chunks(request, cancelled=lambda: len(seen) == 3):
        seen.append(chunk)
    assert [chunk.finish_reason for chunk in seen] == [None, None, None, "cancelled"]
    assert deployment.held == 0


def test_a_consumer_that_walks_away_frees_both_models():
    deployment = Deployment(Fixed(2))
    chunks = deployment.chunks(Request((1, 2), 150))
    next(chunks)
    assert deployment.held > 0
    chunks.close()
    assert deployment.held == 0
