"""Whatever recipe is taken over, to whatever release: a recipe that loads, or reasons."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolkit.engine.llmapi.profiles import RELEASES
from toolkit.errors import RecipeError
from toolkit.migrate import migrate
from toolkit.recipe.load import dump_recipe, load_recipe
from toolkit.recipe.rules import broken_rules
from toolkit.recipe.schema import Recipe

heads = st.fixed_dictionaries({"checkpoint": st.sampled_from(["org/heads", "/models/heads"])})
small = st.integers(1, 12)
# Often what gets over, so that much does.
models = st.fixed_dictionaries(
    {"checkpoint": st.sampled_from(["org/model"] * 5 + ["/models/m", "/m.gguf", "pip:a-b==1"])},
    optional={
        "dtype": st.sampled_from(["float16", "bfloat16", "float32"]),
        "quantization": st.sampled_from([None] * 5 + ["w8a16", "fp8"]),
        "parallel": st.fixed_dictionaries({}, optional={"tp": st.sampled_from([1, 2, 4])}),
        "layers": st.sampled_from([None] * 5 + [[0, 1]]),
    },
)


@st.composite
def lengths(draw):
    """A draft_length section of any policy; a schedule ascends."""
    batches = sorted(draw(st.sets(small, min_size=1, max_size=4)))
    steps = [{"batch": batch, "draft_len": draw(st.integers(0, 8))} for batch in batches]
    return {
        "policy": draw(st.sampled_from(["fixed", "adaptive", "schedule"])),
        "min": draw(st.integers(1, 3)),
        "schedule": steps,
    }


def section(drafter, required=None, **optional):
    common = {"draft_length": lengths()}
    return st.fixed_dictionaries(
        {"drafter": st.just(drafter), **(required or {})}, optional={**common, **optional}
    )


flags = st.booleans()
sections = st.one_of(
    section("none"),
    section(
        "ngram",
        max_draft_len=small,
        max_matching_ngram_size=st.integers(3, 9),
        min_matching_ngram_size=st.integers(1, 3),
    ),
    section("draft_target", {"draft": models}, max_draft_len=small, use_draft_logits=flags),
    section("medusa", {"heads": heads}),
    section("eagle", {"heads": heads}, posterior_threshold=st.sampled_from([None, 0.2])),
    section("redrafter", {"heads": heads}),
    section("lookahead", max_ngram_size=st.integers(2, 4)),
    section(
        "eagle3",
        {"heads": heads, "max_draft_len": small},
        one_model=flags,
        sa_config=st.sampled_from([None, {"threshold": 4}]),
    ),
    section("mtp", max_draft_len=small, use_mtp_vanilla=flags),
    section("pard", {"draft": heads}),
    section("dflash", {"draft": heads}),
    section("sa", max_matching_ngram_size=st.sampled_from([-1, 3])),
)
pytorch = st.fixed_dictionaries(
    {},
    optional={
        "acceptance_gate": st.sampled_from(
            [
                None,
                {"window": 5, "min_rate": 0.3},
                {"window": 5, "min_accepted": 1.5},
                {"window": 2},
            ]
        ),
        "rejection_sampling": flags,
        "penalties": flags,
        "greedy_only": flags,
        "overlap_scheduler": st.sampled_from([None, True, False]),
        "max_concurrency": st.sampled_from([None, 1, 4]),
        "attention_backend": st.sampled_from(["TRTLLM", "FLASHINFER"]),
        "speculative_config": st.dictionaries(
            st.sampled_from(["load_format", "use_sa_spec", "speculative_model", "nonsense"]),
            st.sampled_from(["dummy", True, 3]),
            max_size=2,
        ),
        "llm_args": st.dictionaries(
            st.sampled_from(["sampler_type", "stream_interval", "nonsense"]), small, max_size=2
        ),
    },
)
recipes = st.fixed_dictionaries(
    {
        "name": st.just("r"),
        "backend": st.sampled_from(["cpu", "tensorrt", "pytorch"]),
        "tensorrt_llm": st.sampled_from(["0.16.0", "0.20.0", *RELEASES]),
        "target": models,
        "speculation": sections,
    },
    optional={
        "engine": st.fixed_dictionaries(
            {}, optional={"max_batch_size": st.sampled_from([1, 8, 512, 4096])}
        ),
        "tensorrt": st.fixed_dictionaries(
            {},
            optional={
                "flags": st.dictionaries(st.sampled_from(["gemm_plugin", "x"]), st.just("auto")),
                "kv_cache_fraction": st.sampled_from([0.3, 0.9]),
                "gpu": st.sampled_from([None, "H100"]),
            },
        ),
        "pytorch": pytorch,
        "tune": st.just({"sampling": {"temperature": 1.0}}),
        "serve": st.fixed_dictionaries({"layout": st.sampled_from(["bls", "inprocess"])}),
    },
)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=recipes, version=st.sampled_from([None, *RELEASES]))
def test_any_recipe_gets_over_or_gets_reasons(tmp_path_factory, data, version):
    try:
        found = migrate(Recipe.model_validate(data), version)
    except RecipeError:
        return
    assert list(broken_rules(found.recipe)) == []
    path = tmp_path_factory.mktemp("moved") / "r.yaml"
    path.write_text(dump_recipe(found.recipe), encoding="utf-8")
    assert load_recipe(str(path)) == found.recipe
    again = migrate(found.recipe)
    assert again.recipe == found.recipe  # there is nothing left to change
