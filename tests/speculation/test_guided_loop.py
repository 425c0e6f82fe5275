"""Output under a grammar: always valid, and exact with respect to the masked target.

The tokens are a, b, ab, two ends and one special token. The language of the exact tests is finite,
so that masks, distributions and texts are worked out by counting strings, without the library.
"""

import re
from itertools import product

import numpy as np
import pytest

from toolkit.errors import CapacityError
from toolkit.speculation.draft_length import Adaptive, Confidence, Fixed
from toolkit.speculation.drafters.draft_target import DraftTargetDrafter
from toolkit.speculation.drafters.lookahead import LookaheadDrafter
from toolkit.speculation.drafters.ngram import NGramDrafter
from toolkit.speculation.drafters.self_speculation import SelfSpeculationDrafter
from toolkit.speculation.generation import RunError
from toolkit.speculation.grammar import Guide
from toolkit.speculation.interfaces import Drafter, Proposal, SamplingParams
from toolkit.speculation.loop import Request, SpeculativeLoop

from .table_model import FakeTableModel, random_table
from .test_loop_trees import FakeTreeDrafter
from .tiny_tokens import END, LETTERS, OTHER_END, guidance

VOCAB = 7  # the last row only pads
GUIDANCE = guidance()
TARGET = random_table(3, VOCAB, order=2, spread=1.2)
DRAFT = TARGET + random_table(4, VOCAB, order=2, spread=0.6)
PROMPT = (0, 1, 2, 2, 1, 0, 0, 2, 0, 1, 1, 2)
# Every string of one to four letters without aa. After any beginning there is a choice left.
LANGUAGE = [
    text
    for size in range(1, 5)
    for letters in product("ab", repeat=size)
    if "aa" not in (text := "".join(letters))
]
FINITE = GUIDANCE.compile(Guide("regex", "|".join(LANGUAGE)))
ENDLESS = "((a|b){3}abb)*((ab)*|b)"  # a model may stay in it for ever
PATTERN = re.compile(ENDLESS)
GRAMMAR = GUIDANCE.compile(Guide("regex", ENDLESS))
DRAFTERS = {
    "draft_target": lambda: DraftTargetDrafter(FakeTableModel(DRAFT, max_batch_size=64), VOCAB),
    "same model": lambda: DraftTargetDrafter(FakeTableModel(TARGET, max_batch_size=64), VOCAB),
    "smaller vocabulary": lambda: DraftTargetDrafter(
        FakeTableModel(DRAFT[:, :, :2], max_batch_size=64), VOCAB
    ),
    "ngram": NGramDrafter,
    "tree": lambda: FakeTreeDrafter(DRAFT, width=2),
}
each_drafter = pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS.keys())


def spelled(tokens):
    """The text of the tokens before the end."""
    return "".join(LETTERS[token] for token in tokens if token not in (END, OTHER_END))


def prompts(count, seed=5):
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(0, 3, rng.integers(1, 20)).tolist()) for _ in range(count)]


def guided(prompt, tokens=64, grammar=GRAMMAR, **more):
    return Request(prompt, tokens, grammar=grammar, **more)


def plain(requests, table=TARGET):
    return SpeculativeLoop(FakeTableModel(table), None, Fixed(0)).generate(requests)


def texts(outputs):
    return [output.tokens for output in outputs]


# Every output is valid, and greedy text does not depend on speculation.


@each_drafter
@pytest.mark.parametrize("policy", [Fixed(1), Fixed(5), Adaptive(1, 8), Confidence(4, 0.5)])
@pytest.mark.parametrize("size", [1, 4])
def test_greedy_text_equals_plain_text(drafter, policy, size):
    requests = [guided(prompt) for prompt in prompts(30)]
    model = FakeTableModel(TARGET, max_batch_size=size)
    outputs = SpeculativeLoop(model, drafter(), policy).generate(requests)
    assert texts(outputs) == texts(plain(requests))
    ended = [output for output in outputs if output.finish_reason == "stop"]
    assert len(ended) > 10
    for output in ended:
        assert output.tokens[-1] in (END, OTHER_END)
        assert PATTERN.fullmatch(spelled(output.tokens))
    assert sum(output.stats.accepted_tokens for output in outputs) > 3


def check_guided(drafter, temperature):
    """On and off are equal where nothing is drawn, and what is complete obeys the grammar."""
    requests = [
        guided(prompt, sampling=SamplingParams(temperature, seed=seed))
        for seed, prompt in enumerate(prompts(16))
    ]
    outputs = SpeculativeLoop(FakeTableModel(TARGET, max_batch_size=4), drafter, Fixed(3)).generate(
        requests
    )
    if temperature == 0.0:
        assert texts(outputs) == texts(plain(requests))
    ended = [output for output in outputs if output.finish_reason == "stop"]
    assert len(ended) > 5
    assert all(PATTERN.fullmatch(spelled(output.tokens)) for output in ended)
    assert sum(output.stats.accepted_tokens for output in outputs) > 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_lookahead_obeys_the_grammar_and_its_window_goes_on(temperature):
    learned = []

    class FakeWatchedLookahead(LookaheadDrafter):
        def chosen(self, seq, tokens):
            before = self._windows[seq].levels
            super().chosen(seq, tokens)
            learned.append(self._windows[seq].levels is not before)

    check_guided(FakeWatchedLookahead(3, 4, 3), temperature)
    # But for the last steps of a context, every step is one iteration of the guesses.
    assert np.mean(learned) > 0.9


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_some_of_the_targets_layers_draft_within_the_grammar(temperature):
    part = FakeTableModel(DRAFT, max_batch_size=64)
    check_guided(SelfSpeculationDrafter(part, VOCAB), temperature)


def test_probes_stay_where_the_grammar_takes_candidates_out():
    matcher = GUIDANCE.compile(Guide("regex", "b(a|b)b")).matcher()
    #           b  a  b>b | a  b  a>a : probes, the last one behind the first
    proposal = Proposal([1, 0, 1, 0, 1, 0], None, (-1, -1, 0, -1, -1, 3), probes=3)
    kept = proposal.within(matcher)
    assert (kept.tokens, kept.parents) == ([1, 1, 0, 1, 0], (-1, 0, -1, -1, 2))
    assert (kept.drafted, kept.probes) == (2, 3)


@each_drafter
def test_every_sampled_text_is_valid_and_belongs_to_its_seed(drafter):
    requests = [
        guided(prompt, sampling=SamplingParams(1.1, top_k=4, top_p=0.95, seed=seed))
        for seed, prompt in enumerate(prompts(24))
    ]
    together = SpeculativeLoop(FakeTableModel(TARGET, max_batch_size=4), drafter(), Fixed(3))
    outputs = together.generate(requests)
    alone = [
        SpeculativeLoop(FakeTableModel(TARGET), drafter(), Fixed(3)).generate([request])[0]
        for request in requests
    ]
    assert texts(outputs) == texts(alone)
    for output in outputs:
        assert output.finish_reason == "length" or PATTERN.fullmatch(spelled(output.tokens))


def test_requests_with_and_without_grammars_share_a_batch():
    made = prompts(12)
    requests = [
        Request(prompt, 20)
        if turn % 3 == 0
        else guided(prompt, 20, [GRAMMAR, FINITE][turn % 3 - 1])
        for turn, prompt in enumerate(made)
    ]
    drafter = DRAFTERS["draft_target"]()
    loop = SpeculativeLoop(FakeTableModel(TARGET, max_batch_size=4), drafter, Fixed(4))
    assert texts(loop.generate(requests)) == [plain([request])[0].tokens for request in requests]


def test_a_complete_text_is_ended_whatever_the_model_would_say():
    table = np.zeros((VOCAB, VOCAB))
    table[:, 0] = 9.0  # it would say a for ever
    grammar = GUIDANCE.compile(Guide("regex", "a{7}"))
    for drafter in (None, NGramDrafter(), DraftTargetDrafter(FakeTableModel(table))):
        loop = SpeculativeLoop(FakeTableModel(table), drafter, Fixed(3 if drafter else 0))
        [output] = loop.generate([guided((0,), grammar=grammar)])
        assert output.tokens == [0] * 7 + [END]
        assert output.finish_reason == "stop"


def test_a_text_may_end_at_its_limit_before_it_is_complete():
    [output] = plain([guided((0,), 4, GUIDANCE.compile(Guide("regex", "(ab){9}")))])
    assert output.tokens == [2] * 4
    assert output.finish_reason == "length"


class FakeSmallModel(FakeTableModel):
    """Runs out of KV memory when its sequences together hold more than `room` tokens."""

    def __init__(self, table, room):
        super().__init__(table)
        self.room, self.refused = room, 0

    def forward(self, steps):
        if sum(map(len, self.cache.values())) + sum(len(s.tokens) for s in steps) > self.room:
            self.refused += 1
            raise CapacityError("no free KV block")
        return super().forward(steps)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_that_lost_its_kv_memory_goes_on_in_its_grammar(temperature):
    requests = [
        guided((1, 2, 0, seed % 3), 30, sampling=SamplingParams(temperature, seed=seed))
        for seed in range(9)
    ]
    ample = SpeculativeLoop(FakeTableModel(TARGET), DRAFTERS["draft_target"](), Fixed(3))
    target = FakeSmallModel(TARGET, 40)
    loop = SpeculativeLoop(target, DRAFTERS["draft_target"](), Fixed(3))
    assert texts(loop.generate(requests)) == texts(ample.generate(requests))
    assert target.refused > 0
    assert target.cache == {}


# A draft is cut where the grammar forbids it, but never one that was drawn.


class FakeScriptedDrafter(Drafter):
    """Drafts the given tokens every time, as a lookup or as if drawn from a uniform row."""

    def __init__(self, tokens, *, drawn=False):
        self.tokens, self.drawn = tokens, drawn

    @classmethod
    def create(cls, options, models):
        raise NotImplementedError

    def propose(self, requests):
        rows = np.full((len(self.tokens), VOCAB), 1 / VOCAB) if self.drawn else None
        return [Proposal(list(self.tokens), rows) for _ in requests]


def test_a_tree_without_chance_loses_the_branches_that_the_grammar_forbids():
    # The text may go on with b or ab; behind b any letter; behind ab only b, then the end.
    matcher = GUIDANCE.compile(Guide("regex", "b(a|b)b|ab[b]b")).matcher()
    #   b    a    ab   b>a  b>b  a>a  b>a>b  b>a>a  b>a>b>end
    tokens = [1, 0, 2, 0, 1, 0, 1, 0, END]
    parents = (-1, -1, -1, 0, 0, 1, 3, 3, 6)
    kept = Proposal(tokens, None, parents).within(matcher)
    #              b  a  ab  b>a  b>b  b>a>b  b>a>b>end
    assert kept.tokens == [1, 0, 2, 0, 1, 1, END]
    assert kept.parents == (-1, -1, -1, 0, 0, 3, 5)
    drawn = Proposal(tokens, np.full((9, VOCAB), 1 / VOCAB), parents)
    assert drawn.within(matcher) is drawn


@pytest.mark.parametrize(("drawn", "fed"), [(False, 3), (True, 5)])
def test_only_a_draft_without_chance_ends_where_the_grammar_does(drawn, fed):
    grammar = GUIDANCE.compile(Guide("regex", "(a|b){3}b(a|b){40}"))
    model = FakeTableModel(TARGET)
    loop = SpeculativeLoop(model, FakeScriptedDrafter([0, 1, 0, 1], drawn=drawn), Fixed(4))
    loop.submit(guided((0,), 40, grammar, sampling=SamplingParams(1.0, seed=1)))
    loop.step()
    loop.step()
    # After one letter from prefill a b may follow, then b is forced: the second a is refused.
    assert model.forwards == [[1], [fed]]


def test_a_grammar_that_cannot_go_on_ends_its_request_and_no_other():
    # No token has a c, which the library notices when it gets there.
    doomed = GUIDANCE.compile(Guide("regex", "babc"))
    requests = [guided((0,), 30, doomed), guided((1,), 30), guided((2, 1), 30)]
    loop = SpeculativeLoop(FakeTableModel(TARGET), NGramDrafter(), Fixed(3))
    ids = [loop.submit(request) for request in requests]
    said = {id: [] for id in ids}
    while loop.active:
        for chunk in loop.step():
            said[chunk.request] += chunk.tokens
            assert (chunk.finish_reason == "failed") == bool(chunk.error)
            assert chunk.request == ids[0] or not chunk.error
    assert [said[id] for id in ids[1:]] == texts(plain(requests[1:]))
    with pytest.raises(RunError, match="no token is allowed here"):
        plain(requests[:1])
