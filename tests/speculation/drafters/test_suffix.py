"""The drafter; automaton and corpus, and their definitions, have tests of their own."""

import json

import numpy as np
import pytest
from pydantic import ValidationError

from tests.speculation.table_model import FakeTableModel
from tests.speculation.test_distribution import LENGTH, PROMPT, p_of
from tests.speculation.test_distribution import TARGET as SMALL_TARGET
from tests.speculation.test_loop import TARGET, VOCAB, plain, prompts, texts
from toolkit.errors import InputError
from toolkit.recipe.load import load_recipe
from toolkit.speculation.draft_length import Adaptive, Fixed
from toolkit.speculation.drafters.suffix import SuffixDrafter, SuffixSpeculation
from toolkit.speculation.interfaces import DraftRequest, SamplingParams
from toolkit.speculation.loop import Request, SpeculativeLoop

GREEDY = SamplingParams()


class FakeEncoder:
    vocab_size = VOCAB


def made(tmp_path=None, corpus=(), **options):
    """With past outputs as tokens, if there are any."""
    if corpus:
        path = tmp_path / "past.jsonl"
        path.write_text("".join(json.dumps({"tokens": list(text)}) + "\n" for text in corpus))
        options["corpus"] = str(path)
    drafter = SuffixDrafter.create(SuffixSpeculation(**options), {})
    drafter.prepare(FakeEncoder())
    return drafter


def lookup(drafter, tokens, draft_len):
    drafter.begin(0, tokens[:-1])
    [proposal] = drafter.propose([DraftRequest(0, tokens, draft_len, GREEDY)])
    assert proposal.probs is None
    return proposal.tokens


def test_the_own_text_drafts():
    assert lookup(made(), [7, 8, 9, 1, 7, 8], 3) == [9, 1, 7]
    assert lookup(made(min_matching_ngram_size=3), [7, 8, 9, 1, 7, 8], 3) == []


def test_the_longer_match_drafts_and_the_own_text_of_equals(tmp_path):
    past = [[0, 1, 2, 3, 0]]
    assert lookup(made(tmp_path, past), [2, 4, 1, 2], 2) == [3, 0]
    assert lookup(made(tmp_path, past), [2, 4, 0, 2], 2) == [4, 0]
    assert lookup(made(tmp_path, past), [1, 2, 4, 4, 1, 2], 2) == [4, 4]
    assert lookup(made(tmp_path, past, min_matching_ngram_size=3), [1, 2], 2) == []


def test_where_past_outputs_ended_the_own_text_goes_on(tmp_path):
    assert lookup(made(tmp_path, [[0, 1, 2]]), [2, 4, 1, 2], 2) == [4, 1]


def test_longer_matches_may_draft_more():
    drafter = made(max_draft_factor=1.5)
    assert lookup(drafter, [1, 2, 3, 4, 5, 1], 4) == [2]
    assert lookup(drafter, [1, 2, 3, 4, 5, 1, 2], 4) == [3, 4, 5]
    assert lookup(drafter, [1, 2, 3, 4, 5, 1, 2, 3], 4) == [4, 5, 1, 2]
    assert lookup(made(max_draft_factor=0.1), [1, 2, 1], 4) == [2]


def test_sequences_do_not_see_each_other_and_are_forgotten():
    drafter = made()
    drafter.begin(0, [1, 2])
    drafter.begin(1, [3, 3])
    first, second = drafter.propose(
        [DraftRequest(0, [1, 2, 3], 2, GREEDY), DraftRequest(1, [3, 3, 1], 2, GREEDY)]
    )
    assert first.tokens == second.tokens == []
    drafter.end(0)
    drafter.end(0)
    assert list(drafter._texts) == [1]


@pytest.mark.parametrize("policy", [Fixed(1), Fixed(5), Adaptive(1, 8)])
@pytest.mark.parametrize("past", [False, True])
def test_greedy_text_equals_plain_text_in_ragged_batches(tmp_path, policy, past):
    requests = [Request(prompt, 64) for prompt in prompts(30)]
    expected = plain(requests)
    corpus = expected[:5] if past else ()
    target = FakeTableModel(TARGET, max_batch_size=4, max_seq_len=110)
    loop = SpeculativeLoop(target, made(tmp_path, corpus), policy)
    outputs = loop.generate(requests)
    assert texts(outputs) == expected
    assert sum(output.stats.accepted_tokens for output in outputs) > 100
    assert target.cache == {}


def test_past_outputs_are_accepted_where_they_come_again(tmp_path):
    requests = [Request(prompt, 64) for prompt in prompts(30)]
    corpus = plain(requests)
    steps = [
        sum(
            o.stats.verify_steps
            for o in SpeculativeLoop(FakeTableModel(TARGET), drafter, Fixed(5)).generate(requests)
        )
        for drafter in (
            made(tmp_path, corpus, min_matching_ngram_size=3),
            made(min_matching_ngram_size=3),
        )
    ]
    assert steps[0] < 0.8 * steps[1]


@pytest.mark.parametrize("past", [False, True])
def test_sampled_text_has_the_targets_distribution(tmp_path, past):
    count = 10_000
    drafter = made(tmp_path, [[0, 1, 1, 2], [1, 1, 0]] if past else ())
    loop = SpeculativeLoop(FakeTableModel(SMALL_TARGET, max_batch_size=64), drafter, Fixed(3))
    outputs = loop.generate(
        [Request(PROMPT, LENGTH, SamplingParams(1.0, seed=seed)) for seed in range(count)]
    )
    assert np.mean([output.stats.accepted_tokens for output in outputs]) > 0.3
    assert p_of(outputs, SamplingParams(1.0)) > 0.001


def test_the_sizes_must_be_in_order():
    with pytest.raises(ValidationError, match="min_matching_ngram_size 65 is above"):
        SuffixSpeculation(min_matching_ngram_size=65)


def recipe(tmp_path, more="", backend="cpu"):
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"name: x\nbackend: {backend}\ntarget: {{checkpoint: some/model}}\n"
        f"speculation: {{drafter: suffix{more}}}\n"
    )
    return load_recipe(path)


def test_a_corpus_is_found_beside_the_recipe_or_refused_with_its_line(tmp_path):
    with pytest.raises(InputError, match=r"speculation\.corpus: .*past\.jsonl: no such file"):
        recipe(tmp_path, ", corpus: past.jsonl")
    (tmp_path / "past.jsonl").write_text('{"text": "abc"}\n')
    found = recipe(tmp_path, ", corpus: past.jsonl")
    assert found.speculation.corpus == str(tmp_path / "past.jsonl")


@pytest.mark.parametrize(
    ("backend", "way_out"),
    [
        ("tensorrt", "use drafter: ngram"),
        ("pytorch", "use drafter: ngram"),
        ("pytorch\ntensorrt_llm: 1.3.0rc24", "use drafter: sa, which"),
    ],
)
def test_other_backends_name_the_way_out(tmp_path, backend, way_out):
    with pytest.raises(InputError, match=way_out):
        recipe(tmp_path, backend=backend)
