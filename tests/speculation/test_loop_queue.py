"""Requests that wait, are cancelled or fail, and what they leave behind: nothing."""

import pytest

from toolkit.errors import CapacityError
from toolkit.speculation.draft_length import Fixed
from toolkit.speculation.drafters.draft_target import DraftTargetDrafter
from toolkit.speculation.drafters.ngram import NGramDrafter
from toolkit.speculation.interfaces import Proposal, SamplingParams
from toolkit.speculation.loop import Request, SpeculativeLoop

from .table_model import FakeTableModel
from .test_loop import (
    DRAFT,
    DRAFTERS,
    TARGET,
    VOCAB,
    FakeScriptedDrafter,
    each_drafter,
    plain,
    prompts,
    run,
    texts,
)


def test_requests_wait_for_a_slot_and_all_finish():
    requests = [Request(prompt, 10) for prompt in prompts(7)]
    target = FakeTableModel(TARGET, max_batch_size=2)
    loop = SpeculativeLoop(target, NGramDrafter(), Fixed(3))
    ids = [loop.submit(request) for request in requests]
    assert loop.active == 7
    chunks = loop.step()
    assert {chunk.request for chunk in chunks} == set(ids[:2])
    chunks += run(loop)
    assert loop.active == 0
    assert sorted(c.request for c in chunks if c.finish_reason) == ids
    assert max(map(len, target.forwards)) == 2


def test_requests_wait_for_a_slot_of_the_draft_too():
    requests = [Request(prompt, 10) for prompt in prompts(5)]
    target, draft = FakeTableModel(TARGET), FakeTableModel(DRAFT, max_batch_size=2)
    loop = SpeculativeLoop(target, DraftTargetDrafter(draft), Fixed(3))
    assert texts(loop.generate(requests)) == plain(requests)
    assert max(map(len, target.forwards)) == 2
    assert target.cache == draft.cache == {}


def test_waiting_for_a_slot_that_nobody_will_free_is_an_error():
    target = FakeTableModel(TARGET, max_batch_size=1)
    target.open()
    loop = SpeculativeLoop(target, None, Fixed(0))
    loop.submit(Request((1,), 5))
    with pytest.raises(CapacityError):
        loop.step()
    assert loop.active == 0


class FakeSmallModel(FakeTableModel):
    """Has KV memory for this many tokens in all."""

    def __init__(self, table, memory):
        super().__init__(table)
        self.memory = memory
        self.refused = 0

    def forward(self, steps):
        if sum(map(len, self.cache.values())) + sum(len(s.tokens) for s in steps) > self.memory:
            self.refused += 1
            raise CapacityError("no free KV block")
        return super().forward(steps)


@pytest.mark.parametrize("small", ["target", "draft"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_without_kv_memory_the_youngest_waits_and_goes_on_as_it_would_have(small, temperature):
    requests = [
        Request((1, 2, 3, seed), 30, SamplingParams(temperature, seed=seed)) for seed in range(5)
    ]
    ample = SpeculativeLoop(FakeTableModel(TARGET), DRAFTERS["draft_target"](), Fixed(3))
    target = FakeSmallModel(TARGET, 90 if small == "target" else 9999)
    draft = FakeSmallModel(DRAFT, 90 if small == "draft" else 9999)
    loop = SpeculativeLoop(target, DraftTargetDrafter(draft), Fixed(3))
    assert texts(loop.generate(requests)) == texts(ample.generate(requests))
    assert 0 < target.refused + draft.refused < 20
    assert target.cache == draft.cache == {}


def test_a_request_too_large_for_all_kv_memory_is_an_error():
    target = FakeSmallModel(TARGET, 10)
    with pytest.raises(CapacityError):
        SpeculativeLoop(target, None, Fixed(0)).generate([Request((1, 2), 30)])
    assert target.cache == {}


@each_drafter
def test_cancelling_frees_the_slot_at_once(drafter):
    target = FakeTableModel(TARGET, max_batch_size=2)
    loop = SpeculativeLoop(target, drafter(), Fixed(3))
    first, second, waiting = (loop.submit(Request(prompt, 50)) for prompt in prompts(3))
    loop.step()
    assert loop.cancel(first).finish_reason == "cancelled"
    assert len(target.cache) == 1
    assert loop.cancel(waiting).finish_reason == "cancelled"
    assert loop.cancel(first) is None  # long over
    assert {chunk.request for chunk in run(loop)} == {second}
    assert target.cache == {}


def test_a_finished_request_keeps_its_counts_until_they_are_forgotten():
    loop = SpeculativeLoop(FakeTableModel(TARGET), None, Fixed(0))
    id = loop.submit(Request((1,), 3))
    run(loop)
    assert loop.stats(id).output_tokens == 3
    loop.forget(id)
    with pytest.raises(KeyError):
        loop.stats(id)


class BrokenDrafter(NGramDrafter):
    """Fails in one method, from the given call on."""

    def __init__(self, method, call):
        super().__init__()
        self.countdown, self.broken = call, method

    def _maybe_fail(self, method):
        if method == self.broken:
            self.countdown -= 1
            if self.countdown <= 0:
                raise ZeroDivisionError(method)

    def begin(self, seq, prompt):
        self._maybe_fail("begin")
        super().begin(seq, prompt)

    def propose(self, requests):
        self._maybe_fail("propose")
        return super().propose(requests)

    def accept(self, seq, tokens, accepted):
        self._maybe_fail("accept")

    def end(self, seq):
        self._maybe_fail("end")


@pytest.mark.parametrize("method", ["begin", "propose", "accept", "end"])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_drafter_that_fails_leaks_no_slot(method, call):
    target = FakeTableModel(TARGET, max_batch_size=3)
    loop = SpeculativeLoop(target, BrokenDrafter(method, call), Fixed(3))
    for prompt in prompts(5):
        loop.submit(Request(prompt, 20))
    with pytest.raises(ZeroDivisionError, match=method):
        run(loop)
    assert target.cache == {}
    assert loop.active == 0


@pytest.mark.parametrize("draft", [[1, 2, 3, 4, 5, 6], [VOCAB], [-1]])
def test_a_proposal_outside_its_bounds_never_reaches_the_target(draft):
    class FakeWildDrafter(FakeScriptedDrafter):
        def propose(self, requests):
            return [Proposal(draft) for _ in requests]

    target = FakeTableModel(TARGET)
    with pytest.raises(RuntimeError, match="FakeWildDrafter drafted"):
        SpeculativeLoop(target, FakeWildDrafter(), Fixed(3)).generate([Request((1,), 9)])
    assert target.cache == {}
