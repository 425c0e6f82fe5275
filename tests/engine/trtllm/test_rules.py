"""One broken recipe for every rule, and the good ones that nothing is said about."""

import json

import pytest

from tests.engine.trtllm.golden_flags import GOLDEN, RELEASES
from tests.engine.trtllm.recipes import SPECULATION, made
from toolkit.engine.trtllm.rules import engine_problems, model_problems, recipe_problems


def said(problems):
    return [f"{'.'.join(map(str, path))}: {text}" for path, text in problems]


def of(recipe):
    return said(recipe_problems(recipe))


def config(architecture="LlamaForCausalLM", tp=1, vocab=250, quant=None, kv=None, **more):
    return {
        "architecture": architecture,
        "vocab_size": vocab,
        "mapping": {"world_size": tp, "tp_size": tp, "pp_size": 1},
        "quantization": {"quant_algo": quant, "kv_cache_quant_algo": kv},
        **more,
    }


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("drafter", SPECULATION)
def test_good_recipes_have_no_problems(drafter, version):
    assert of(made(drafter, version)) == []


@pytest.mark.parametrize(
    ("recipe", "where", "says"),
    [
        (made(version="0.12.0"), "tensorrt_llm", "set 0.16.0 or newer"),
        (made("medusa", version="1.3.0"), "tensorrt_llm", "use backend: pytorch"),
        (
            made(flags={"max_draft_len": 3}),
            "tensorrt.flags.max_draft_len",
            "speculation.max_draft_len",
        ),
        (made(flags={"build_config": "x.json"}), "tensorrt.flags.build_config", "one by one"),
        (made(flags={"auto_parallel": 2}), "tensorrt.flags.auto_parallel", "known in 0.16"),
        (made(flags={"max_beam_width": 4}), "tensorrt.flags.max_beam_width", "no beam search"),
        (
            made(flags={"kv_cache_type": "continuous"}),
            "tensorrt.flags.kv_cache_type",
            "paged KV cache only",
        ),
        (
            made("none", flags={"paged_kv_cache": "disable"}),
            "tensorrt.flags.paged_kv_cache",
            "deprecated",
        ),
        (
            made(flags={"gather_context_logits": True}),
            "tensorrt.flags.gather_context_logits",
            "max_draft_len 10",
        ),
        (
            made("medusa", flags={"gather_all_token_logits": True}),
            "tensorrt.flags.gather_all_token_logits",
            "max_draft_len 63",
        ),
        (
            made("none", flags={"multiple_profiles": "enable", "opt_num_tokens": 8}),
            "tensorrt.flags.multiple_profiles",
            "remove one of the two",
        ),
        (
            made("none", flags={"reduce_fusion": "enable"}),
            "tensorrt.flags.reduce_fusion",
            "needs tensor parallelism",
        ),
        (
            made(flags={"use_paged_context_fmha": "disable"}),
            "tensorrt.flags.use_paged_context_fmha",
            "needs 'enable'",
        ),
        (
            made(flags={"context_fmha": "disable"}),
            "tensorrt.flags.context_fmha",
            "paged context FMHA",
        ),
        (made("none", flags={"streamingllm": "enable"}), "tensorrt.flags.streamingllm", "any more"),
        (
            made("medusa", target={"quantization": "fp8"}),
            "target.quantization",
            "fails to build medusa heads on a quantised target: use null",
        ),
        (made("eagle", target={"parallel": {"pp": 2}}), "target.parallel.pp", "use parallel.tp"),
        (made("eagle", engine={"max_batch_size": 513}), "engine.max_batch_size", "at most 512"),
        (
            made(
                speculation={"draft": {"checkpoint": "d", "parallel": {"tp": 2}}},
                target={"parallel": {"tp": 4}},
            ),
            "speculation.draft.parallel.tp",
            "(1 or 4)",
        ),
        (made(gpu="H1000"), "tensorrt.gpu", "did you mean 'H100'?"),
        (made(gpu="T4"), "tensorrt.gpu", "sm_75; draft_target needs sm_80"),
        (
            made(gpu="B200", target={"quantization": "w8a16"}),
            "target.quantization",
            "W8A16 is refused on Blackwell (sm_100)",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_rule_refuses_its_broken_recipe_and_nothing_else(recipe, where, says):
    found = of(recipe)
    assert len(found) == 1, found
    assert found[0].startswith(f"{where}: ")
    assert says in found[0]


def test_all_problems_are_said_at_once():
    recipe = made(
        "eagle",
        target={"parallel": {"pp": 2}},
        engine={"max_batch_size": 1024},
        flags={"max_beam_width": 2, "gemm_plugin": "best"},
    )
    assert len(of(recipe)) == 4


def test_weight_only_is_fine_on_hopper_and_before_1_2():
    weight_only = {"quantization": "w8a16"}
    assert of(made(gpu="H100", target=weight_only)) == []
    assert of(made(gpu="B200", version="1.0.0", target=weight_only)) == []


@pytest.mark.parametrize("drafter", ["draft_target", "ngram", "eagle"])
@pytest.mark.parametrize(
    ("quant", "kv", "says"),
    [
        (None, "INT8", "int8 KV cache excludes"),
        (None, "FP8", "fp8 KV cache with unquantised weights"),
    ],
)
def test_some_kv_caches_exclude_block_reuse(drafter, quant, kv, says):
    found = said(engine_problems(made(drafter), "target", config(quant=quant, kv=kv)))
    assert len(found) == 1
    assert found[0].startswith("target.checkpoint: ")
    assert says in found[0]


def test_fp8_weights_and_kv_cache_go_with_block_reuse():
    assert said(engine_problems(made(), "target", config(quant="FP8", kv="FP8"))) == []
    assert said(engine_problems(made("medusa"), "target", config(kv="INT8"))) == []


@pytest.mark.parametrize(
    ("drafter", "version", "architecture", "says"),
    [
        ("eagle", "1.2.1", "Qwen2ForCausalLM", "exist for LlamaForCausalLM, MistralForCausalLM"),
        ("medusa", "1.2.1", "GemmaForCausalLM", "the target is GemmaForCausalLM"),
        (
            "redrafter",
            "0.16.0",
            "Qwen2ForCausalLM",
            "TensorRT-LLM 0.16.0 exist for LlamaForCausalLM",
        ),
        (
            "none",
            "0.20.0",
            "Qwen3ForCausalLM",
            "0.20.0 has no Qwen3ForCausalLM (target); it came with 1.0",
        ),
    ],
)
def test_modes_exist_for_some_architectures(drafter, version, architecture, says):
    found = said(engine_problems(made(drafter, version), "target", config(architecture)))
    assert len(found) == 1
    assert says in found[0]


def test_redrafter_has_qwen_from_1_0():
    recipe = made("redrafter", "1.0.0")
    assert said(engine_problems(recipe, "target", config("Qwen2ForCausalLM"))) == []


@pytest.mark.parametrize(
    ("drafter", "missing"),
    [
        ("medusa", "num_medusa_heads"),
        ("eagle", "num_eagle_layers"),
        ("redrafter", "redrafter_num_beams"),
    ],
)
def test_a_mode_on_a_plain_checkpoint_is_refused(drafter, missing):
    found = said(engine_problems(made(drafter), "target", config(), final=True))
    assert any(f"a plain LlamaForCausalLM without {missing}" in text for text in found)


def test_medusa_heads_without_the_mode_are_refused():
    stored = golden("engine016_medusa_nomode")
    found = said(engine_problems(made("none"), "target", stored, final=True))
    assert "4 Medusa heads, which an engine without mode 'medusa' never uses" in found[0]


def golden(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())["config"]["pretrained_config"]


@pytest.mark.parametrize(
    ("drafter", "name"),
    [
        ("medusa", "engine016_medusa"),
        ("eagle", "engine016_eagle"),
        ("redrafter", "engine016_redrafter"),
        ("lookahead", "engine016_look"),
        ("draft_target", "engine016_dtarget"),
    ],
)
def test_upstreams_own_checkpoints_are_good(drafter, name):
    assert said(engine_problems(made(drafter, "0.16.0"), "target", golden(name), final=True)) == []


def test_recipe_and_checkpoint_must_draft_equally_many_tokens():
    recipe = made("medusa", speculation={"max_draft_len": 64})
    found = said(engine_problems(recipe, "target", golden("engine016_medusa"), final=True))
    assert found == [
        "speculation.max_draft_len: 64, but the checkpoint's config.json says 63; both must agree: "
        "convert again"
    ]


def test_logits_of_different_widths_cannot_be_compared():
    # Qwen2.5-72B has 152064 rows, Qwen2.5-1.5B has 151936, with one tokenizer.
    configs = {
        "target": config("Qwen2ForCausalLM", tp=4, vocab=152064),
        "draft": config("Qwen2ForCausalLM", vocab=151936),
    }
    assert said(model_problems(made(), configs)) == []
    found = said(model_problems(made(speculation={"use_draft_logits": True}), configs))
    assert len(found) == 1
    assert "151936 wide, the target's 152064" in found[0]


def test_padding_counts_as_width():
    # 250 over 4 ranks is padded to 252.
    configs = {"target": config(tp=4), "draft": config()}
    found = said(model_problems(made(speculation={"use_draft_logits": True}), configs))
    assert "250 wide, the target's 252" in found[0]
