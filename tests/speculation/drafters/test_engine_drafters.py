"""Drafters that live in engines: their options, their flags, and where they can run."""

import pytest
from pydantic import ValidationError

from toolkit.errors import InputError
from toolkit.recipe.schema import Recipe
from toolkit.registry import DRAFTERS
from toolkit.speculation.drafters.lookahead import lookahead_draft_len

HEADS = {"checkpoint": "org/heads"}
ENGINE_ONLY = ("medusa", "eagle", "redrafter", "lookahead")


def options(drafter, **values):
    if drafter != "lookahead":
        values.setdefault("heads", HEADS)
    return DRAFTERS[drafter].Options.model_validate({"drafter": drafter, **values})


def problems(drafter, engine=None, tensorrt_llm="1.2.1", **values):
    recipe = Recipe.model_validate(
        {
            "name": "x",
            "backend": "tensorrt",
            "tensorrt_llm": tensorrt_llm,
            "target": {"checkpoint": "org/model"},
            "speculation": {"drafter": drafter, "heads": HEADS, **values},
            "engine": engine or {},
        }
    )
    return [
        ".".join(path) + ": " + text for path, text in DRAFTERS[drafter].tensorrt_problems(recipe)
    ]


@pytest.mark.parametrize(
    ("sizes", "drafted"),
    [
        ((7, 7, 7), 83),  # 5 + (6 + 7) * 6
        ((3, 8, 3), 41),  # 6 + (2 + 3) * 7
        ((4, 2, 4), 7),  # 0 + (3 + 4) * 1
        ((1, 1, 0), 0),
    ],
)
def test_lookahead_drafts_by_its_formula(sizes, drafted):
    assert lookahead_draft_len(*sizes) == drafted


def test_lookahead_fills_in_max_draft_len_and_refuses_another():
    assert options("lookahead").max_draft_len == 83
    small = options("lookahead", max_window_size=4, max_ngram_size=2, max_verification_set_size=4)
    assert small.max_draft_len == 7
    with pytest.raises(ValidationError, match=r"max_draft_len is 80.* need 83; leave it out"):
        options("lookahead", max_draft_len=80)
    with pytest.raises(ValidationError, match="drafts nothing"):
        options("lookahead", max_ngram_size=1, max_draft_len=4)


def test_redrafter_drafts_beams_times_tokens():
    assert options("redrafter").max_draft_len == 25
    assert options("redrafter", redrafter_num_beams=4).max_draft_len == 20
    with pytest.raises(ValidationError, match=r"5 beams x 5 tokens are 25"):
        options("redrafter", max_draft_len=20)


@pytest.mark.parametrize("drafter", ENGINE_ONLY)
def test_engine_drafters_say_why_they_cannot_run_elsewhere(drafter):
    kind = DRAFTERS[drafter]
    assert kind.unsupported_on("tensorrt", "1.2.1") is None
    assert "use backend: tensorrt" in kind.unsupported_on("pytorch", "1.2.1")


def test_redrafter_has_no_heads_on_the_embedded_engine():
    kind = DRAFTERS["redrafter"]
    assert "use backend: tensorrt" in kind.unsupported_on("cpu", "1.2.1")
    with pytest.raises(InputError, match="use backend: tensorrt"):
        kind.create(options("redrafter"), {})


def test_eagle3_is_refused_for_engines_with_the_way_out():
    reason = DRAFTERS["eagle3"].unsupported_on("tensorrt", "1.2.1")
    assert "backend: pytorch" in reason
    assert DRAFTERS["eagle3"].unsupported_on("pytorch", "1.2.1") is None


@pytest.mark.parametrize(
    ("drafter", "mode", "max_draft_len"),
    [
        ("medusa", "medusa", 63),
        ("eagle", "eagle", 63),
        ("redrafter", "explicit_draft_tokens", 25),
        ("lookahead", "lookahead_decoding", 83),
    ],
)
def test_each_mode_is_spelt_as_trtllm_build_spells_it(drafter, mode, max_draft_len):
    flags = DRAFTERS[drafter].engine_flags(options(drafter), "target", (1, 2))
    assert flags["speculative_decoding_mode"] == mode
    assert flags["max_draft_len"] == max_draft_len


@pytest.mark.parametrize("role", ["target", "draft"])
def test_both_engines_of_a_pair_have_paged_context_fmha(role):
    chosen = DRAFTERS["draft_target"].Options(max_draft_len=10, draft={"checkpoint": "org/d"})
    flags = DRAFTERS["draft_target"].engine_flags(chosen, role, (1, 2))
    assert flags["use_paged_context_fmha"] == "enable"
    assert flags.get("max_draft_len") == (10 if role == "target" else None)


def test_generation_logits_are_a_build_flag_in_0_16_only():
    kind = DRAFTERS["draft_target"]
    chosen = kind.Options(draft={"checkpoint": "org/d"}, use_draft_logits=True)
    for role in ("target", "draft"):
        assert kind.engine_flags(chosen, role, (0, 16))["gather_generation_logits"] is True
        assert "gather_generation_logits" not in kind.engine_flags(chosen, role, (1, 2))


def test_what_a_verify_step_can_accept_is_the_depth_not_the_nodes():
    lengths = {name: DRAFTERS[name].path_len(options(name)) for name in ENGINE_ONLY}
    assert lengths == {"medusa": 4, "eagle": 4, "redrafter": 5, "lookahead": 6}


def test_eagle_choices_must_reach_exactly_the_number_of_layers():
    assert problems("eagle") == []
    assert problems("eagle", num_eagle_layers=5) == [
        "speculation.eagle_choices: depth 4, this drafter has exactly 5"
    ]


def test_eagle_engines_have_limits_of_their_own():
    found = problems("eagle", engine={"max_batch_size": 513}, max_draft_len=257)
    assert found == [
        "speculation.max_draft_len: 257; EAGLE engines take at most 256",
        "engine.max_batch_size: 513; EAGLE engines take at most 512",
    ]
    assert problems("eagle", engine={"max_batch_size": 512}, max_draft_len=256) == []


def test_a_dynamic_tree_has_no_choices_and_needs_a_width():
    assert problems("eagle", eagle_use_dynamic_tree=True, eagle_dynamic_tree_max_top_k=10) == []
    found = problems(
        "eagle", eagle_use_dynamic_tree=True, eagle_choices=[[0]], tensorrt_llm="0.20.0"
    )
    assert "no EAGLE-2" in found[0]
    assert "a dynamic tree has no choices" in found[1]
    assert "required with eagle_use_dynamic_tree" in found[2]
    assert "only a dynamic tree" in problems("eagle", eagle_dynamic_tree_max_top_k=10)[0]


def test_medusa_trees_are_no_deeper_than_there_are_heads():
    assert problems("medusa", num_medusa_heads=4) == []
    assert "depth 4, this drafter has at most 3" in problems("medusa", num_medusa_heads=3)[0]
    assert "63 nodes, max_draft_len is 10" in problems("medusa", max_draft_len=10)[0]
