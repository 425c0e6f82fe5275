"""The loop with prompts that begin alike, too little memory, and drafters out of order."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine_fixtures import tiny_built
from tests.speculation.table_model import FakeTableModel, random_table
from toolkit.backends.interfaces import CacheOptions
from toolkit.backends.runtime import open_runtime
from toolkit.errors import InputError
from toolkit.speculation.draft_length import Fixed
from toolkit.speculation.drafters.ngram import NGramDrafter
from toolkit.speculation.interfaces import Proposal
from toolkit.speculation.loop import Request, SpeculativeLoop

TABLE = random_table(4, 40)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return tiny_built(tmp_path_factory.mktemp("tiny"), noise=0.02, max_draft_len=4)


@pytest.fixture(scope="module")
def requests():
    """Twelve prompts after one long beginning, and four after another; some go on from others."""
    rng = np.random.default_rng(3)
    beginnings = [rng.integers(0, 256, 100).tolist() for _ in range(2)]
    prompts = [
        (*beginnings[i >= 12], *rng.integers(0, 256, 1 + 5 * (i % 7)).tolist()) for i in range(16)
    ]
    return [Request(prompt, 40) for prompt in prompts]


@pytest.fixture(scope="module")
def plain(built):
    """The target alone, nothing shared: tokens of each request."""
    runtime = open_runtime(built)
    return lambda requests: [o.tokens for o in runtime.loop(draft_len=0).generate(requests)]


def test_greedy_text_is_the_same_with_shared_beginnings(built, requests, plain):
    wanted = plain(requests)
    runtime = open_runtime(built, cache=CacheOptions(share_prefixes=True))
    loop = runtime.loop()
    got = [o.tokens for o in loop.generate(requests)]
    assert got == wanted
    # Four that come after the first batch of eight find their beginning: 96 of its 100 tokens are
    # three whole blocks. Those that bring the second beginning may all come in one step.
    assert loop.reused_tokens >= 4 * 96
    again = runtime.loop()
    assert [o.tokens for o in again.generate(requests)] == wanted
    assert again.reused_tokens >= 16 * 96
    for model in (runtime.models["target"], runtime.models["draft"]):
        assert model.kv_usage == 0.0


def test_a_conversation_goes_on_where_it_ended(built, requests, plain):
    runtime = open_runtime(built, cache=CacheOptions(share_prefixes=True))
    [first] = runtime.loop().generate([requests[0]])
    longer = Request((*requests[0].prompt, *first.tokens, 7, 8, 9), 30)
    loop = runtime.loop()
    [second] = loop.generate([longer])
    known = len(requests[0].prompt) + len(first.tokens) - 1
    assert loop.reused_tokens == known // 32 * 32
    assert [second.tokens] == plain([longer])


def test_too_little_memory_costs_time_and_no_text(built, requests, plain):
    """KV memory for two and a half texts: requests take turns, and every block comes back."""
    wanted = plain(requests)
    block = 2 * 2 * 2 * 32 * 16 * 4  # bytes: layers, keys and values, heads, tokens, float32[16]
    # Target and draft share it evenly: 13 blocks of 32 tokens each, and a text takes 5 or 6.
    small = open_runtime(built, cache=CacheOptions(2 * 13 * block, share_prefixes=True))
    assert small.target.kv_capacity == 13 * 32
    assert [o.tokens for o in small.loop().generate(requests)] == wanted
    assert small.target.kv_usage == 0.0


def test_a_request_that_memory_can_never_hold_is_refused_at_once():
    loop = SpeculativeLoop(FakeTableModel(TABLE, kv_capacity=50), None, Fixed(0))
    with pytest.raises(InputError, match=r"60 tokens, more than .* \(50\)"):
        loop.submit(Request(tuple(range(20)), 40))
    assert loop.active == 0
    loop.submit(Request(tuple(range(20)), 30))


class FakeBrokenDrafter(NGramDrafter):
    """Works a while, then breaks in one way."""

    def __init__(self, how: str, after: int = 3) -> None:
        super().__init__()
        self.how, self.left = how, after

    def propose(self, requests):
        proposals = super().propose(requests)
        self.left -= 1
        if self.left > 0 or self.how.startswith("cannot"):
            return proposals
        return {
            "raises": lambda: 1 / 0,
            "too many": lambda: [Proposal([1] * 99)] * len(requests),
            "too few": lambda: proposals[:-1],
            "no token": lambda: [Proposal([-5])] * len(requests),
            "wrong parents": lambda: [Proposal([1, 2], parents=(5, 9))] * len(requests),
        }[self.how]()

    def begin(self, seq, prompt):
        if self.how == "cannot begin" and self.left <= 3 and seq == 1:
            raise ValueError("no more memory in the draft")
        super().begin(seq, prompt)

    def accept(self, seq, tokens, accepted):
        if self.how == "cannot accept":
            raise ValueError("lost count")
        super().accept(seq, tokens, accepted)

    def end(self, seq):
        if self.how == "cannot end":
            raise ValueError("what sequence?")
        super().end(seq)


HOW = [
    "raises", "too many", "too few", "no token", "wrong parents",
    "cannot begin", "cannot accept", "cannot end",
]  # fmt: skip


@pytest.mark.parametrize("how", HOW)
def test_requests_go_on_plainly_when_their_drafter_breaks(how):
    requests = [Request((i, i + 1, i, i + 1, i), 30) for i in range(4)]
    wanted = SpeculativeLoop(FakeTableModel(TABLE), None, Fixed(0)).generate(requests)
    model, heard = FakeTableModel(TABLE), []
    loop = SpeculativeLoop(model, FakeBrokenDrafter(how), Fixed(3))
    loop.draft_failed = lambda error, count: heard.append((error, count))
    got = loop.generate(requests)
    assert [o.tokens for o in got] == [o.tokens for o in wanted]
    assert sum(count for _, count in heard) == (1 if how == "cannot begin" else 4)
    assert model.cache == {}


@pytest.mark.parametrize("how", HOW)
def test_a_measurement_does_not_pass_over_it(how):
    loop = SpeculativeLoop(FakeTableModel(TABLE), FakeBrokenDrafter(how), Fixed(3))
    with pytest.raises((RuntimeError, ValueError, ZeroDivisionError)):
        loop.generate([Request((i, i + 1, i, i + 1, i), 30) for i in range(4)])
