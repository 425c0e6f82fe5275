"""A runtime is a recipe's models, tokenizer, drafter and loop, checked to fit together."""

import json
import shutil
from dataclasses import replace

import pytest

from tests.engine_fixtures import tiny_built, tiny_runtime
from toolkit.backends.runtime import open_runtime
from toolkit.errors import InputError
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.loop import Request

PROMPTS = ["hello", "the quick brown fox", "안녕하세요", "abcabcabc"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return tiny_built(tmp_path_factory.mktemp("tiny"), noise=0.01)


@pytest.fixture(scope="module")
def runtime(built):
    return open_runtime(built)


def requests(runtime, **sampling):
    return [
        Request(tuple(runtime.tokenizer.encode(p)), 48, SamplingParams(**sampling), frozenset())
        for p in PROMPTS
    ]


def test_speculation_changes_nothing_but_the_steps(runtime):
    plain = runtime.loop(draft_len=0).generate(requests(runtime))
    fast = runtime.loop().generate(requests(runtime))
    assert [o.tokens for o in fast] == [o.tokens for o in plain]
    assert sum(o.stats.accepted_tokens for o in fast) > 0
    assert sum(o.stats.draft_tokens for o in plain) == 0


def test_draft_len_overrides_the_recipes(runtime):
    (output,) = runtime.loop(draft_len=2).generate(requests(runtime)[:1])
    assert max(output.stats.drafted_per_step) == 2


@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_drafters_without_a_model_load_only_the_target(tmp_path_factory, runtime, drafter):
    other = tiny_runtime(tmp_path_factory, drafter=drafter)
    assert set(other.models) == {"target"}
    assert (other.drafter() is None) == (drafter == "none")
    plain = runtime.loop(draft_len=0).generate(requests(runtime))
    outputs = other.loop().generate(requests(other))
    assert [o.tokens for o in outputs] == [o.tokens for o in plain]


def test_loops_leave_no_sequence_open(runtime):
    free = {role: model.free_blocks for role, model in runtime.models.items()}
    for temperature in (0.0, 1.0):
        runtime.loop().generate(requests(runtime, temperature=temperature, seed=1))
    assert {role: model.free_blocks for role, model in runtime.models.items()} == free


def test_a_draft_with_another_tokenizer_is_refused_naming_tokens(built, tmp_path):
    other = shutil.copytree(built.tokenizers["draft"], tmp_path / "tokenizer")
    content = json.loads((other / "tokenizer.json").read_text())
    vocab = content["model"]["vocab"]
    vocab["A"], vocab["B"] = vocab["B"], vocab["A"]
    (other / "tokenizer.json").write_text(json.dumps(content))
    wrong = replace(built, tokenizers={**built.tokenizers, "draft": other})
    with pytest.raises(InputError, match=r"draft: 2 of 259 token ids differ: \d+ is 'A' in one"):
        open_runtime(wrong)
