"""Silent traps of the PyTorch backend: each is an error with its fix, or a note before a build."""

from __future__ import annotations

import pytest

from tests.engine.llmapi.recipes import recipe
from toolkit.engine.llmapi.emit import llm_args, speculative_config
from toolkit.engine.llmapi.notes import model_notes, recipe_notes
from toolkit.engine.llmapi.rules import model_problems, recipe_problems
from toolkit.recipe.schema import Recipe


def changed(made: Recipe, **sections) -> Recipe:
    data = made.model_dump()
    for name, values in sections.items():
        data[name] = {**data[name], **values}
    return Recipe.model_validate(data)


def problems(made: Recipe) -> list[str]:
    return [f"{'.'.join(map(str, path))}: {text}" for path, text in recipe_problems(made)]


PROBLEMS = [
    (
        changed(recipe("eagle3"), target={"parallel": {"tp": 2, "pp": 2}}),
        "target.parallel.pp", "no release speculates with pipeline parallelism",
    ),
    (
        changed(recipe("ngram"), target={"quantization": "fp8"}),
        "target.quantization", "name a quantised one",
    ),
    (
        changed(recipe("ngram"), target={"layers": (0, 1)}),
        "target.layers", "whole checkpoints",
    ),
    (
        changed(recipe("ngram"), target={"checkpoint": "pip:x==1.0"}),
        "target.checkpoint", "Hugging Face checkpoints only",
    ),
    (
        recipe("pard", "1.3.0rc24", draft={"checkpoint": "org/p", "revision": "main"}),
        "speculation.draft.revision", "download this revision",
    ),
    (recipe("ngram", "0.16.0"), "tensorrt_llm", "1.0 or newer"),
    (recipe("ngram", "newest"), "tensorrt_llm", "not a release"),
    (
        recipe("ngram", pytorch={"overlap_scheduler": True}),
        "pytorch.overlap_scheduler", "switches it off for ngram",
    ),
    (
        recipe("draft_target", pytorch={"overlap_scheduler": True}),
        "pytorch.overlap_scheduler", "switches it off for draft_target",
    ),
    (
        recipe("eagle3", pytorch={"attention_backend": "FLASHINFER"}),
        "pytorch.block_reuse", "set it to false",
    ),
    (
        # 1100 requests of 2 * 4 tokens are 8800, above 8192; of 4 + 1 they would fit.
        recipe("pard", "1.3.0rc24", engine={"max_batch_size": 1100}),
        "engine.max_num_tokens", "takes 8800 tokens (8 each)",
    ),
    (
        recipe(
            "eagle3", "1.3.0rc24", use_dynamic_tree=True, dynamic_tree_max_top_k=10,
            engine={"max_batch_size": 8, "max_num_tokens": 200},
        ),
        "engine.max_num_tokens", "takes 248 tokens (31 each)",
    ),
    (
        changed(recipe("eagle3", "1.0.0"), tune={"sampling": {"temperature": 0.7}}),
        "tune.sampling.temperature", "decode greedily here; use TensorRT-LLM 1.2 or newer",
    ),
    (
        changed(
            recipe("eagle3", pytorch={"greedy_only": True}),
            tune={"sampling": {"temperature": 0.7}},
        ),
        "tune.sampling.temperature", "pytorch.greedy_only: false",
    ),
    (
        recipe("sa", "1.3.0rc24", pytorch={"rejection_sampling": True}),
        "pytorch.rejection_sampling", "drafts without probabilities",
    ),
    (
        recipe("eagle3", pytorch={"rejection_sampling": True}),
        "pytorch.rejection_sampling", "refuses it",
    ),
    (
        recipe(
            "mtp", "1.3.0rc24",
            pytorch={"rejection_sampling": True, "guided_decoding": "xgrammar"},
        ),
        "pytorch.rejection_sampling", "guided_decoding",
    ),
    (
        recipe(
            "eagle3", "1.3.0rc24", sa_config={"threshold": 4},
            pytorch={"rejection_sampling": True},
        ),
        "pytorch.rejection_sampling", "sa_config",
    ),
    (
        recipe(
            "mtp", "1.3.0rc24", use_relaxed_acceptance_for_thinking=True, relaxed_topk=10,
            pytorch={"rejection_sampling": True},
        ),
        "pytorch.rejection_sampling", "relaxed acceptance",
    ),
    (
        recipe("eagle3", pytorch={"penalties": True}),
        "pytorch.penalties", "late previews of 1.3",
    ),
    (
        recipe("eagle3", pytorch={"acceptance_gate": {"window": 9}}),
        "pytorch.acceptance_gate", "one of min_rate",
    ),
    (
        recipe(
            "eagle3", "1.3.0rc24",
            pytorch={"acceptance_gate": {"window": 9, "min_accepted": 1}},
        ),
        "pytorch.acceptance_gate.min_accepted", "acceptance_rate_threshold",
    ),
    (
        recipe("eagle3", "1.0.0", pytorch={"max_concurrency": 4}),
        "pytorch.max_concurrency", "came with 1.1",
    ),
    (
        recipe(
            "eagle3", "1.3.0rc24", pytorch={"max_concurrency": 4},
            draft_length={"policy": "schedule", "schedule": [{"batch": 1, "draft_len": 3}]},
        ),
        "pytorch.max_concurrency", "excludes draft_len_schedule",
    ),
    (
        recipe("sa", "1.3.0rc24", enable_global_pool=True, max_matching_ngram_size=8,
               global_pool_size=4),
        "speculation.global_pool_size", "below engine.max_batch_size (8)",
    ),
    (
        recipe("ngram", pytorch={"llm_args": {"trust_remote_code": True}}),
        "pytorch.llm_args.trust_remote_code", "never runs code",
    ),
    (
        recipe("ngram", pytorch={"llm_args": {"max_batch_size": 4}}),
        "pytorch.llm_args.max_batch_size", "engine.max_batch_size",
    ),
    (
        recipe("ngram", pytorch={"llm_args": {"stream_intervall": 4}}),
        "pytorch.llm_args.stream_intervall", "did you mean 'stream_interval'",
    ),
    (
        recipe("ngram", "1.3.0rc24", pytorch={"llm_args": {"sampler_type": "TRTLLMSampler"}}),
        "pytorch.llm_args.sampler_type", "not a key",
    ),
    (
        recipe("eagle3", pytorch={"llm_args": {"sampler_type": "TRTLLMSampler"}}),
        "pytorch.llm_args.sampler_type", "cannot verify drafts",
    ),
    (
        recipe("ngram", pytorch={"llm_args": {"max_beam_width": 4}}),
        "pytorch.llm_args.max_beam_width", "no drafter works with beam search",
    ),
    (
        recipe(
            "ngram",
            pytorch={
                "llm_args": {"cuda_graph_config": {"batch_sizes": [1, 2], "max_batch_size": 8}}
            },
        ),
        "pytorch.llm_args.cuda_graph_config.max_batch_size", "follows from batch_sizes",
    ),
    (
        recipe(
            "eagle3", "1.3.0rc24",
            draft_length={"policy": "schedule", "schedule": [{"batch": 1, "draft_len": 3}]},
            pytorch={"llm_args": {"cuda_graph_config": {"enable_padding": False}}},
        ),
        "pytorch.llm_args.cuda_graph_config.enable_padding", "a schedule needs padded batches",
    ),
    (
        recipe("draft_target", draft={"checkpoint": "org/d", "quantization": "fp8"}),
        "speculation.draft.quantization", "name a quantised checkpoint",
    ),
    (
        recipe("draft_target", draft={"checkpoint": "org/d", "parallel": {"tp": 4}}),
        "speculation.draft.parallel.tp", "runs on the target's GPUs",
    ),
    (
        recipe("draft_target", use_draft_logits=True),
        "speculation.use_draft_logits", "pytorch.rejection_sampling",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("made", "where", "said"), PROBLEMS)
def test_a_trap_is_an_error_where_the_recipe_says_it(made, where, said):
    found = problems(made)
    assert any(text.startswith(f"{where}: ") and said in text for text in found), found


NOTES = [
    (recipe("mtp", "1.2.1"), "with max_draft_len alone this release drafts 1"),
    (recipe("eagle3", "1.1.0"), "ignored without a word"),
    (recipe("eagle3", pytorch={"greedy_only": True}), "temperature, top_k and top_p"),
    (recipe("eagle3", "1.4.0rc4"), "pytorch.penalties: true takes them"),
    (recipe("ngram"), "the overlap scheduler is off"),
    (recipe("draft_target", "1.1.0"), "block reuse is off"),
    (recipe("pard", "1.3.0rc24"), "takes 8 tokens a request through each step"),
    (
        recipe("eagle3", pytorch={"acceptance_gate": {"window": 9, "min_accepted": 1}}),
        "ends speculation for good",
    ),
    (
        recipe("mtp", use_relaxed_acceptance_for_thinking=True, relaxed_topk=10,
               relaxed_delta=0.6),
        "the output changes",
    ),
    (recipe("eagle3", "1.3.0rc24", pytorch={"rejection_sampling": True}), "FlashInfer 0.6.4"),
    (
        recipe("eagle3", "1.3.0rc24",
               draft_length={"policy": "schedule", "schedule": [{"batch": 1, "draft_len": 3}]}),
        "'batch at most this'",
    ),
    (recipe("eagle3", "1.3.0rc24", pytorch={"max_concurrency": 4}), "turned into"),
    (recipe("eagle3", "1.5.0"), "newer than any release known here"),
    (recipe("sa", "1.3.0rc24", enable_global_pool=True, max_matching_ngram_size=8),
     "one user's text is drafted for another's"),
    (recipe("draft_target"), "the probe decides"),
    (
        recipe("eagle3", one_model=False, pytorch={"guided_decoding": "xgrammar"}),
        "the overlap scheduler goes off by itself",
    ),
    (
        recipe("mtp", "1.3.0rc24", use_dynamic_tree=True, dynamic_tree_max_top_k=4),
        "verifies a dynamic tree greedily",
    ),
    (recipe("eagle3", pytorch={"max_concurrency": 4}), "as if it were not there"),
    (
        recipe("dspark", "1.4.0rc4", pytorch={"acceptance_gate": {"window": 9, "min_rate": 0.2}}),
        "is unsure",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("made", "said"), NOTES)
def test_what_nobody_is_told_is_a_note(made, said):
    assert recipe_problems(made) == []
    assert any(said in note for note in recipe_notes(made)), recipe_notes(made)


def test_a_limit_that_is_followed_needs_no_such_note():
    for made in (
        recipe("ngram", pytorch={"max_concurrency": 4}),
        recipe("eagle3", "1.3.0rc24", pytorch={"max_concurrency": 4}),
    ):
        assert not any("as if it were not there" in note for note in recipe_notes(made))


def test_plain_decoding_has_nothing_to_say():
    assert recipe_problems(recipe("none")) == []
    assert recipe_notes(recipe("none")) == []
    assert "speculative_config" not in llm_args(recipe("none"))


STEPS = [{"batch": 1, "draft_len": 3}, {"batch": 4, "draft_len": 1}, {"batch": 8, "draft_len": 0}]


@pytest.mark.parametrize(
    ("release", "written"), [("1.2.1", {1: 3, 4: 1, 8: 0}), ("1.3.0rc24", {3: 3, 7: 1})]
)
def test_one_schedule_is_written_as_each_release_reads_it(release, written):
    made = recipe("eagle3", release, draft_length={"policy": "schedule", "schedule": STEPS})
    assert recipe_problems(made) == []
    assert speculative_config(made)["draft_len_schedule"] == written


def test_a_drafter_in_the_graph_is_told_to_sample_where_it_must_be():
    assert speculative_config(recipe("eagle3", "1.2.1"))["allow_advanced_sampling"] is True
    for made in (
        recipe("eagle3", "1.1.0"), recipe("eagle3", "1.3.0rc24"), recipe("ngram", "1.2.1"),
        recipe("eagle3", "1.2.1", pytorch={"greedy_only": True}),
    ):  # fmt: skip
        assert "allow_advanced_sampling" not in speculative_config(made)


def test_switches_reach_the_configuration():
    made = recipe(
        "eagle3", "1.4.0rc4",
        pytorch={
            "cuda_graphs": False, "chunked_prefill": True, "guided_decoding": "xgrammar",
            "penalties": True, "overlap_scheduler": False, "kv_cache_fraction": 0.5,
            "attention_backend": "VANILLA", "llm_args": {"stream_interval": 2},
        },
    )  # fmt: skip
    args = llm_args(made)
    assert args["cuda_graph_config"] is None
    assert args["enable_chunked_prefill"] is True
    assert args["guided_decoding_backend"] == "xgrammar"
    assert args["disable_overlap_scheduler"] is True
    assert args["kv_cache_config"]["free_gpu_memory_fraction"] == 0.5
    assert args["attn_backend"] == "VANILLA"
    assert args["stream_interval"] == 2
    assert args["speculative_config"]["enable_penalty"] is True


def test_a_section_of_llm_args_is_laid_over_ours():
    more = {
        "kv_cache_config": {"dtype": "fp8"},
        "cuda_graph_config": {"batch_sizes": [1, 2, 4]},
    }
    args = llm_args(recipe("ngram", pytorch={"llm_args": more}))
    assert args["kv_cache_config"] == {
        "enable_block_reuse": True, "free_gpu_memory_fraction": 0.9, "dtype": "fp8",
    }  # fmt: skip
    assert args["cuda_graph_config"] == {"enable_padding": True, "batch_sizes": [1, 2, 4]}


def test_another_tokenizer_can_be_named():
    made = recipe("ngram", pytorch={"llm_args": {"tokenizer": "org/tokenizer"}})
    assert recipe_problems(made) == []
    assert llm_args(made)["tokenizer"] == "org/tokenizer"


def test_latent_attention_is_said_to_lose_block_reuse_elsewhere():
    assert "block reuse" in model_notes(recipe("mtp"), {"kv_lora_rank": 512})[0]
    assert model_notes(recipe("mtp"), {"hidden_size": 64}) == []
    assert model_notes(recipe("mtp"), None) == []


MODELS = [
    # what the target's config.json says, with DeepSeek's and others' names
    (recipe("mtp"), {"num_nextn_predict_layers": 1}, None, ""),
    (recipe("mtp"), {"mtp_num_hidden_layers": 1}, None, ""),
    (recipe("mtp"), {"hidden_size": 64}, None, "no such layers"),
    (
        recipe("mtp"), {"num_nextn_predict_layers": 1, "sliding_window": 4096}, None,
        "refuses targets with a sliding window",
    ),
    (
        recipe("mtp"),
        {"num_nextn_predict_layers": 1, "sliding_window": 4096, "use_sliding_window": False},
        None, "",
    ),
    (
        recipe("mtp", use_mtp_vanilla=True, max_draft_len=3), {"num_nextn_predict_layers": 1},
        None, "uses each once",
    ),
    (
        recipe("eagle3", "1.3.0rc24", use_dynamic_tree=True, dynamic_tree_max_top_k=4),
        {"kv_lora_rank": 512}, None, "latent attention",
    ),
    (
        recipe("eagle3", eagle3_layers_to_capture=[1, 40]), {"num_hidden_layers": 32}, None,
        "layers are 0..31",
    ),
    (recipe("pard", "1.3.0rc24"), None, {"pard_token": 7}, ""),
    (recipe("pard", "1.3.0rc24"), None, {}, "may be an ordinary model"),
    (
        recipe("dflash", "1.3.0rc24"), None,
        {
            "architectures": ["DFlashDraftModel"], "block_size": 16,
            "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
        },
        "",
    ),
    (
        recipe("dflash", "1.3.0rc24"), None, {"architectures": ["LlamaForCausalLM"]},
        "which is no DFlash drafter",
    ),
    (
        recipe("dspark", "1.3.0rc24", max_draft_len=7), None,
        {"architectures": ["DSparkDraftModel"], "block_size": 7}, "",
    ),
    (
        recipe("dspark", "1.3.0rc24", max_draft_len=5), None,
        {"architectures": ["DSparkDraftModel"], "block_size": 7}, "make them equal",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("made", "target", "draft", "said"), MODELS)
def test_config_json_of_the_models_is_looked_at(made, target, draft, said):
    found = model_problems(made, target, draft)
    if not said:
        assert found == []
    else:
        assert any(said in text for _, text in found), found
