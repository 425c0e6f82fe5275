"""Where engines run: GPUs, MPI ranks, and what cannot be."""

from __future__ import annotations

import pytest

from tests.engine.trtllm.recipes import made
from toolkit.engine.trtllm.placement import placement, serve_problems
from toolkit.recipe.schema import Recipe


def recipe(drafter="draft_target", *, tp=1, draft_tp=1, **serve) -> Recipe:
    speculation = {}
    if drafter == "draft_target":
        speculation = {"draft": {"checkpoint": "org/draft", "parallel": {"tp": draft_tp}}}
        if serve.get("fast_logits"):
            speculation["use_draft_logits"] = True
    found = made(drafter, speculation=speculation, target={"parallel": {"tp": tp}})
    document = found.model_dump(mode="json") | {"serve": {"tensorrt": serve}}
    return Recipe.model_validate(document)


def problems(*args, **kwargs) -> dict[str, str]:
    return {
        ".".join(map(str, path)): text for path, text in serve_problems(recipe(*args, **kwargs))
    }


# target and draft ranks; what serve.tensorrt says; GPUs of both, processes, MPI ranks, world size
CASES = [
    (1, 1, {}, (0,), (0,), "spawn", {}, 1),
    (1, 1, {"placement": "separate"}, (0,), (1,), "spawn", {}, 1),
    (4, 1, {}, (0, 1, 2, 3), (0,), "spawn", {}, 1),
    (4, 4, {}, (0, 1, 2, 3), (0, 1, 2, 3), "spawn", {}, 1),
    (4, 4, {"placement": "separate"}, (0, 1, 2, 3), (4, 5, 6, 7), "spawn", {}, 1),
    (2, 1, {"target": {"gpus": [2, 3]}, "draft": {"gpus": [5]}}, (2, 3), (5,), "spawn", {}, 1),
    (2, 1, {"placement": "separate", "target": {"gpus": [2, 3]}}, (2, 3), (4,), "spawn", {}, 1),
    (
        2, 1, {"processes": "participants"}, (0, 1), (0,), "participants",
        {"target": (1, 2), "draft": (3,)}, 4,
    ),
    (
        1, 1, {"fast_logits": True, "placement": "separate"}, (0,), (1,), "participants",
        {"target": (1,), "draft": (2,)}, 3,
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("tp", "draft_tp", "serve", "target", "draft", "processes", "participants", "world"), CASES
)
def test_two_engines(tp, draft_tp, serve, target, draft, processes, participants, world):
    found = placement(recipe(tp=tp, draft_tp=draft_tp, **serve))
    assert dict(found.gpus) == {"target": target, "draft": draft}
    assert (found.processes, dict(found.participants)) == (processes, participants)
    assert found.world_size == world
    assert found.shared == bool(set(target) & set(draft))
    assert problems(tp=tp, draft_tp=draft_tp, **serve) == {}


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("drafter", ["none", "ngram", "medusa", "lookahead"])
def test_the_leaders_world_is_the_ranks_of_its_one_engine(drafter, tp):
    found = placement(recipe(drafter, tp=tp))
    assert (found.processes, found.world_size, found.shared) == ("leader", tp, False)


@pytest.mark.parametrize(
    ("serve", "where", "what"),
    [
        ({"processes": "leader"}, "processes", "leader runs one engine, here are 2"),
        ({"target": {"gpus": [0]}}, "target.gpus", "1 GPU(s) for an engine of 2 rank(s)"),
        ({"target": {"gpus": [1, 1]}}, "target.gpus", "a GPU of its own"),
        ({"draft": {"gpus": [0, 1]}}, "draft.gpus", "2 GPU(s) for an engine of 1 rank(s)"),
        ({"enable_kv_cache_reuse": False}, "enable_kv_cache_reuse", "reads it again"),
        ({"decoupled": True}, "decoupled", "streams itself"),
        ({"batching_strategy": "v1"}, "batching_strategy", "v1 cannot verify"),
        ({"fast_logits": True, "processes": "spawn"}, "fast_logits", "use participants"),
        ({"parameters": {"multi_blok_mode": "true"}}, "parameters.multi_blok_mode",
         "did you mean 'multi_block_mode'"),
        ({"parameters": {"decoding_mode": "medusa"}}, "parameters.decoding_mode",
         "said elsewhere: speculation.drafter"),
        ({"guided_decoding": "xgrammar"}, "guided_decoding", "begins its grammar anew"),
        ({"parameters": {"guided_decoding_backend": "xgrammar"}},
         "parameters.guided_decoding_backend", "said elsewhere: serve.tensorrt.guided_decoding"),
        ({"parameters": {"gpt_model_path": "/x"}}, "parameters.gpt_model_path", "said elsewhere"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_with_its_place(serve, where, what):
    found = problems(tp=2, **serve)
    assert list(found) == [f"serve.tensorrt.{where}"]
    assert what in found[f"serve.tensorrt.{where}"]


def test_grammars_came_with_a_release():
    document = made("medusa").model_dump(mode="json")
    document["serve"] = {"tensorrt": {"guided_decoding": "xgrammar"}}
    assert list(serve_problems(Recipe.model_validate(document))) == []
    old = Recipe.model_validate(document | {"tensorrt_llm": "0.18.0"})
    [(path, text)] = serve_problems(old)
    assert path[-1] == "guided_decoding"
    assert "came with TensorRT-LLM 0.19" in text


def test_fast_logits_need_logits():
    speculation = {"draft": {"checkpoint": "org/draft"}}
    document = made(speculation=speculation).model_dump(mode="json")
    document["serve"] = {"tensorrt": {"fast_logits": True}}
    [(path, text)] = serve_problems(Recipe.model_validate(document))
    assert path[-1] == "fast_logits"
    assert "use_draft_logits: true" in text


def test_a_draft_that_is_not_there_is_not_placed():
    assert "no draft engine" in problems("ngram", draft={"gpus": [1]})["serve.tensorrt.draft"]


def test_a_parameter_from_a_later_release_is_refused():
    old = made(version="0.16.0").model_dump(mode="json")
    old["serve"] = {"tensorrt": {"parameters": {"num_nodes": "2"}}}
    [(_, text)] = serve_problems(Recipe.model_validate(old))
    assert text == "came with TensorRT-LLM 0.19"
