import numpy as np
import pytest

from toolkit.errors import InputError
from toolkit.speculation.draft_length import Adaptive, Fixed
from toolkit.speculation.drafters.draft_target import DraftTargetDrafter
from toolkit.speculation.drafters.ngram import NGramDrafter
from toolkit.speculation.interfaces import Drafter, Proposal, SamplingParams
from toolkit.speculation.loop import Request, SpeculativeLoop

from .table_model import FakeTableModel, random_table

VOCAB = 12
TARGET = random_table(0, VOCAB, order=2, spread=2.0)
DRAFT = TARGET + random_table(1, VOCAB, order=2, spread=0.7)
DRAFTERS = {
    "draft_target": lambda: DraftTargetDrafter(FakeTableModel(DRAFT)),
    "same model": lambda: DraftTargetDrafter(FakeTableModel(TARGET)),
    "ngram": NGramDrafter,
}
POLICIES = {"fixed 1": Fixed(1), "fixed 5": Fixed(5), "adaptive": Adaptive(1, 8)}
each_drafter = pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS.keys())
each_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())


def prompts(count, seed=5):
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(0, VOCAB, rng.integers(1, 40)).tolist()) for _ in range(count)]


def plain(requests, table=TARGET):
    return texts(SpeculativeLoop(FakeTableModel(table), None, Fixed(0)).generate(requests))


def texts(outputs):
    return [output.tokens for output in outputs]


def run(loop):
    """Every request's tokens, chunk by chunk, until nothing is active."""
    chunks = []
    while loop.active:
        chunks += loop.step()
    return chunks


class FakeScriptedDrafter(Drafter):
    """Drafts the given proposals in turn, whoever asks."""

    def __init__(self, *script):
        self.script = list(script)
        self.begun, self.accepted, self.ended, self.draft_lens = [], [], [], []

    @classmethod
    def create(cls, options, models):
        return cls()

    def begin(self, seq, prompt):
        self.begun.append((seq, list(prompt)))

    def propose(self, requests):
        self.draft_lens += [request.draft_len for request in requests]
        return [Proposal(self.script.pop(0)[: r.draft_len]) for r in requests]

    def accept(self, seq, tokens, accepted):
        self.accepted.append((list(tokens), accepted))

    def end(self, seq):
        self.ended.append(seq)


def counting_table():
    """Greedy text 0 1 2 3 ...: token t is followed by t + 1."""
    return np.eye(20)[(np.arange(20) + 1) % 20] * 10.0


# Greedy: speculation changes the pace, never the text.


def test_plain_decoding_follows_the_model():
    [output] = SpeculativeLoop(FakeTableModel(counting_table()), None, Fixed(0)).generate(
        [Request((3,), 5)]
    )
    assert output.tokens == [4, 5, 6, 7, 8]
    assert output.finish_reason == "length"
    assert output.stats.verify_steps == 4


@each_drafter
@each_policy
def test_greedy_text_equals_plain_text_in_ragged_batches(drafter, policy):
    requests = [Request(prompt, 64) for prompt in prompts(30)]
    target = FakeTableModel(TARGET, max_batch_size=4)
    outputs = SpeculativeLoop(target, drafter(), policy).generate(requests)
    assert texts(outputs) == plain(requests)
    assert sum(output.stats.accepted_tokens for output in outputs) > 100
    assert target.cache == {}
    assert max(map(len, target.forwards)) == 4
    assert any(len(set(sizes)) > 1 for sizes in target.forwards)  # ragged


def test_a_perfect_draft_is_accepted_whole():
    requests = [Request(prompt, 61) for prompt in prompts(5)]
    outputs = SpeculativeLoop(
        FakeTableModel(TARGET), DraftTargetDrafter(FakeTableModel(TARGET)), Fixed(5)
    ).generate(requests)
    for output in outputs:
        # 1 token from prefill, then 10 steps of 5 draft tokens and a bonus token.
        assert output.stats.accepted_per_step == [5] * 10
        assert output.stats.acceptance_length == 6.0


@each_drafter
def test_requests_with_their_own_draft_len_share_a_batch(drafter):
    requests = [
        Request(prompt, 40, draft_len=draft_len)
        for prompt, draft_len in zip(prompts(6), [0, 1, 2, 7, 0, None], strict=True)
    ]
    outputs = SpeculativeLoop(FakeTableModel(TARGET), drafter(), Fixed(3)).generate(requests)
    assert texts(outputs) == plain(requests)
    assert [max(o.stats.drafted_per_step) for o in outputs] == [0, 1, 2, 7, 0, 3]


# Sampled: a seeded text belongs to its request.


@each_drafter
@pytest.mark.parametrize("sampling", [(0.9, 0, 1.0), (1.0, 5, 0.9)])
def test_a_seeded_text_does_not_depend_on_the_batch(drafter, sampling):
    requests = [
        Request(prompt, 30, SamplingParams(*sampling, seed=seed))
        for seed, prompt in enumerate(prompts(9))
    ]
    alone = [
        SpeculativeLoop(FakeTableModel(TARGET), drafter(), Fixed(3)).generate([request])[0].tokens
        for request in requests
    ]
    together = SpeculativeLoop(FakeTableModel(TARGET, max_batch_size=4), drafter(), Fixed(3))
    assert texts(together.generate(requests[::-1])) == alone[::-1]


def test_another_seed_gives_another_text():
    requests = [Request((1, 2), 30, SamplingParams(1.0, seed=seed)) for seed in (1, 1, 2)]
    one, same, other = texts(
        SpeculativeLoop(FakeTableModel(TARGET), NGramDrafter(), Fixed(3)).generate(requests)
    )
    assert one == same != other


def test_a_request_that_joins_later_gets_the_same_text():
    first, second = (Request(prompt, 20, SamplingParams(1.0, seed=3)) for prompt in prompts(2))
    loop = SpeculativeLoop(FakeTableModel(TARGET), DRAFTERS["draft_target"](), Fixed(4))
    ids = [loop.submit(first)]
    chunks = loop.step() + loop.step()
    ids.append(loop.submit(second))
    chunks += run(loop)
    for id, request in zip(ids, (first, second), strict=True):
        fresh = SpeculativeLoop(FakeTableModel(TARGET), DRAFTERS["draft_target"](), Fixed(4))
        tokens = [token for chunk in chunks if chunk.request == id for token in chunk.tokens]
        assert tokens == fresh.generate([request])[0].tokens


# Limits.


@each_drafter
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7])
def test_no_more_than_max_tokens_come_out(drafter, max_tokens):
    loop = SpeculativeLoop(FakeTableModel(TARGET), drafter(), Fixed(6))
    for output in loop.generate([Request(prompt, max_tokens) for prompt in prompts(5)]):
        assert len(output.tokens) == output.stats.output_tokens == max_tokens
        assert output.finish_reason == "length"


@each_drafter
def test_a_text_ends_where_the_engine_does(drafter):
    request = Request((1, 2, 3), 1000)
    target = FakeTableModel(TARGET, max_seq_len=20)
    [output] = SpeculativeLoop(target, drafter(), Fixed(6)).generate([request])
    assert output.tokens == plain([Request((1, 2, 3), 17)])[0]
    assert output.finish_reason == "length"


def test_no_draft_is_made_for_tokens_that_may_not_come():
    drafter = FakeScriptedDrafter([4, 5, 6, 7], [8, 9])
    loop = SpeculativeLoop(FakeTableModel(counting_table()), drafter, Fixed(4))
    [output] = loop.generate([Request((2,), 8)])
    # Token 3 from prefill, then 4..8; of the two that remain one is drafted and one is the bonus.
    assert output.tokens == [3, 4, 5, 6, 7, 8, 9, 10]
    assert drafter.draft_lens == [4, 1]


def test_a_request_that_can_never_run_is_refused_with_all_its_problems():
    loop = SpeculativeLoop(FakeTableModel(TARGET, max_seq_len=4), None, Fixed(0))
    with pytest.raises(InputError, match=r"5 tokens.*\b99 is outside.*max_tokens: 0"):
        loop.submit(Request((1, 2, 3, 99, 1), 0))
    with pytest.raises(InputError, match="no tokens"):
        loop.submit(Request((), 1))
    assert loop.active == 0


# Stopping.


def test_a_stop_token_among_the_accepted_ends_the_request_and_is_its_last_token():
    drafter = FakeScriptedDrafter([4, 5, 6, 7])
    loop = SpeculativeLoop(FakeTableModel(counting_table()), drafter, Fixed(4))
    [output] = loop.generate([Request((2,), 100, stop_tokens=frozenset({5}))])
    assert output.tokens == [3, 4, 5]
    assert output.finish_reason == "stop"
    # Behind the stop nothing was accepted, whatever verify said.
    assert output.stats.accepted_per_step == [2]
    assert output.stats.output_tokens == 3


def test_the_first_token_may_be_a_stop_token():
    loop = SpeculativeLoop(FakeTableModel(counting_table()), NGramDrafter(), Fixed(4))
    [output] = loop.generate([Request((2,), 100, stop_tokens=frozenset({3}))])
    assert (output.tokens, output.finish_reason) == ([3], "stop")
    assert output.stats.verify_steps == 0


def test_a_stop_string_ends_the_request_with_the_token_that_completes_it():
    def letters(tokens):
        return "".join(chr(ord("a") + token) for token in tokens)

    drafter = FakeScriptedDrafter([4, 5, 6, 7])
    loop = SpeculativeLoop(FakeTableModel(counting_table()), drafter, Fixed(4), decode=letters)
    [output] = loop.generate([Request((2,), 100, stop_strings=("ef",))])
    assert (letters(output.tokens), output.finish_reason) == ("def", "stop")


# Prefill.


def test_a_long_prompt_is_read_in_pieces_while_others_go_on():
    target = FakeTableModel(TARGET)
    loop = SpeculativeLoop(target, None, Fixed(0), max_prefill_tokens=8)
    quick = loop.submit(Request((1, 2), 10))
    loop.step()
    slow = loop.submit(Request(prompts(1)[0][:1] * 20, 2))
    chunks = [loop.step() for _ in range(3)]
    assert target.forwards == [[2], [1, 8], [1, 8], [1, 4]]
    assert [[chunk.request for chunk in step] for step in chunks] == [[quick]] * 2 + [[quick, slow]]
    requests = [Request((1, 2), 10), Request(prompts(1)[0][:1] * 20, 2)]
    assert [c.tokens[0] for c in chunks[2]] == [plain(requests)[0][3], plain(requests)[1][0]]


def test_prompts_of_one_step_share_the_prefill_limit():
    target = FakeTableModel(TARGET)
    loop = SpeculativeLoop(target, None, Fixed(0), max_prefill_tokens=8)
    for size in (5, 5, 5):
        loop.submit(Request((1,) * size, 1))
    run(loop)
    assert target.forwards == [[5, 3], [2, 5]]


def test_a_plain_request_does_not_trouble_the_drafter():
    drafter = FakeScriptedDrafter()
    loop = SpeculativeLoop(FakeTableModel(TARGET), drafter, Fixed(3))
    loop.generate([Request((1,), 5, draft_len=0)])
    assert drafter.begun == drafter.ended == drafter.accepted == []


# What is reported.


def test_counts_of_a_worked_trace():
    # Prefill emits 3. Three verify steps of 4 draft tokens accept 3, 0 and 2: 4 + 1 + 3 tokens.
    drafter = FakeScriptedDrafter([4, 5, 6, 0], [0, 0, 0, 0], [9, 10, 0, 0])
    target = FakeTableModel(counting_table())
    loop = SpeculativeLoop(target, drafter, Fixed(4))
    id = loop.submit(Request((2,), 13))
    chunks = [loop.step() for _ in range(4)]
    assert [chunk.tokens for [chunk] in chunks] == [[3], [4, 5, 6, 7], [8], [9, 10, 11]]
    assert [(chunk.drafted, chunk.accepted) for [chunk] in chunks] == [
        (0, 0),
        (4, 3),
        (4, 0),
        (4, 2),
    ]
    assert drafter.accepted == [([4, 5, 6, 7], 3), ([8], 0), ([9, 10, 11], 2)]
    stats = loop.stats(id)
    assert (stats.prefill_tokens, stats.output_tokens, stats.verify_steps) == (1, 9, 3)
    assert stats.acceptance_rate == 5 / 12
    assert stats.acceptance_length == 1 + 5 / 3
    # The last token is not in the cache yet: 1 of the prompt and 8 of 9.
    assert [target.length(seq) for seq in target.cache] == [9]
    assert len(stats.chunk_ns) == 4
    assert 0 < stats.ttft_ns == stats.chunk_ns[0]
    assert stats.chunk_ns == sorted(stats.chunk_ns)
    assert stats.e2e_ns == stats.chunk_ns[-1]
    assert drafter.begun == [(id, [2])]
    loop.close()
    assert drafter.ended == [id]


def test_generate_refuses_to_swallow_other_requests():
    loop = SpeculativeLoop(FakeTableModel(TARGET), None, Fixed(0))
    loop.submit(Request((1,), 5))
    with pytest.raises(RuntimeError, match="active"):
        loop.generate([Request((1,), 5)])
    assert loop.active == 1


def test_a_step_without_requests_does_nothing():
    target = FakeTableModel(TARGET)
    assert SpeculativeLoop(target, None, Fixed(0)).step() == []
    assert target.forwards == []
