"""Every bundled engine recipe, planned for every release without a GPU and without a network."""

import shlex
import socket

import pytest

from tests.engine.trtllm.golden_flags import RELEASES, parse
from toolkit.plan import make_plan
from toolkit.recipe.load import bundled_recipes, load_recipe
from toolkit.store import Store

NAMES = [name for name in sorted(bundled_recipes()) if load_recipe(name).backend == "tensorrt"]
EFFECTIVE = {  # max_seq_len by hand: the recipe's, plus draft tokens, plus EAGLE's layers
    "llama3/8b_eagle": 8192 + 63 + 4,
    "llama3_1/70b_draft_target": 4800 + 10,
    "llama3_1/70b_draft_target_1b": 4800 + 8,
    "qwen2_5/72b_draft_target": 8192 + 8,
    "qwen2_5/coder_7b_lookahead": 8192 + 41,  # 6 + (2 + 3) * 7
    "vicuna/7b_eagle": 2048 + 63 + 4,
    "vicuna/7b_medusa": 2048 + 63,
    "vicuna/7b_redrafter": 2048 + 25,
}


@pytest.fixture
def plan(tmp_path, monkeypatch):
    def refuse(*args):
        raise AssertionError("a plan must not touch the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("PATH", "")

    def make(name, *overrides):
        return make_plan(load_recipe(name, overrides), Store(tmp_path / "store"))

    return make


def engines(plan):
    return [artefact for artefact in plan.artefacts if artefact.kind == "engines"]


def test_there_is_a_recipe_for_every_way_to_draft_in_engines():
    drafters = {load_recipe(name).speculation.drafter for name in NAMES}
    assert drafters >= {"draft_target", "medusa", "eagle", "redrafter", "lookahead"}


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("name", NAMES)
def test_every_flag_and_value_is_legal_in_every_release(name, version, plan):
    made = engines(plan(name, f"tensorrt_llm={version}"))
    assert len(made) == len(load_recipe(name).models())
    for artefact in made:
        program, *argv = shlex.split(artefact.command)
        parsed = parse(argv, version)
        assert program == "trtllm-build"
        assert parsed["max_beam_width"] == 1


@pytest.mark.parametrize("name", EFFECTIVE)
def test_a_plan_says_how_long_sequences_really_get(name, plan):
    (target,) = [artefact for artefact in engines(plan(name)) if artefact.roles == ("target",)]
    assert f"becomes {EFFECTIVE[name]}" in target.notes[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_on_a_laptop_says_which_digests_wait_and_why(name, plan):
    made = plan(name)
    assert not made.complete
    for artefact in engines(made):
        assert artefact.digest is None
        assert "engine digests are not known here: trtllm-build is not on PATH" in artefact.notes[1]


def test_the_qwen_pair_accepts_by_tokens():
    assert load_recipe("qwen2_5/72b_draft_target").speculation.use_draft_logits is False
