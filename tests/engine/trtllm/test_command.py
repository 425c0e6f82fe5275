"""Command lines against the golden parser tables and the engines that upstream made of them."""

import json

import pytest

from tests.engine.trtllm.golden_flags import GOLDEN, RELEASES, parse
from tests.engine.trtllm.recipes import SPECULATION, made
from toolkit.engine.trtllm.command import RESERVED, build_command, engine_flags
from toolkit.engine.trtllm.flags import TABLES


def command(recipe, role="target", **more):
    return build_command(recipe, role, checkpoint_dir="ckpt", output_dir="out", **more)


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("drafter", SPECULATION)
def test_every_flag_is_legal_in_every_release(drafter, version):
    recipe = made(
        drafter,
        version,
        speculation={"use_draft_logits": True} if drafter == "draft_target" else {},
    )
    for role in recipe.models():
        program, *argv = command(recipe, role)
        parsed = parse(argv, version)
        assert program == "trtllm-build"
        assert parsed["checkpoint_dir"] == "ckpt"
        assert parsed["max_seq_len"] == 200


def test_the_target_of_a_pair_word_by_word():
    assert command(made("draft_target")) == (
        "trtllm-build", "--checkpoint_dir", "ckpt", "--output_dir", "out",
        "--max_batch_size", "4", "--max_input_len", "128", "--max_seq_len", "200",
        "--max_beam_width", "1", "--kv_cache_type", "paged", "--gemm_plugin", "auto",
        "--use_paged_context_fmha", "enable",
        "--speculative_decoding_mode", "draft_tokens_external", "--max_draft_len", "10",
    )  # fmt: skip


def test_the_draft_of_a_pair_has_no_mode():
    words = command(made("draft_target"), "draft")
    assert words[-2:] == ("--use_paged_context_fmha", "enable")
    assert "--speculative_decoding_mode" not in words


@pytest.mark.parametrize(
    ("drafter", "role", "golden"),
    [
        ("draft_target", "target", "engine016_dtarget"),
        ("draft_target", "draft", "engine016_draft"),
        ("eagle", "target", "engine016_eagle"),
        ("medusa", "target", "engine016_medusa"),
        ("lookahead", "target", "engine016_look"),
        ("redrafter", "target", "engine016_redrafter"),
    ],
)
def test_0_16_commands_say_what_the_golden_engines_were_built_with(drafter, role, golden):
    options = {"use_draft_logits": True} if drafter == "draft_target" else {}
    flags = parse(list(command(made(drafter, "0.16.0", options), role))[1:], "0.16.0")
    built = json.loads((GOLDEN / f"{golden}.json").read_text())["config"]["build_config"]
    paged = flags.get("use_paged_context_fmha", "disable") == "enable"
    assert paged == built["plugin_config"]["use_paged_context_fmha"]
    assert flags.get("gather_generation_logits", False) == built["gather_generation_logits"]
    assert flags["kv_cache_type"].upper() == built["kv_cache_type"]
    # R5 and R6: these two are numbers that upstream derives; limits.py has the derived ones.
    assert flags.get("max_draft_len", 0) == built["max_draft_len"]
    assert flags["max_beam_width"] == built["max_beam_width"]


def test_ranks_are_built_side_by_side():
    words = command(made("none", target={"parallel": {"tp": 4}}))
    assert words[-2:] == ("--workers", "4")
    assert "--workers" not in command(made("none"))


def test_more_flags_come_from_the_recipe_and_win():
    flags = engine_flags(
        made("none", flags={"gemm_plugin": "float16", "strip_plan": True}), "target"
    )
    assert flags["gemm_plugin"] == "float16"
    assert (
        command(made("none", flags={"strip_plan": True, "fast_build": False}))[-1] == "--strip_plan"
    )


def test_fp8_weights_have_no_gemm_plugin():
    assert "gemm_plugin" not in engine_flags(made("none", target={"quantization": "fp8"}), "target")


def test_what_the_recipe_may_not_set_exists():
    assert set(RESERVED) <= set(TABLES["1.2"])
