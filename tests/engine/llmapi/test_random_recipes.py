"""Whatever a recipe says: it is refused in words, or what is written is taken by its release."""

from __future__ import annotations

from contextlib import suppress

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.engine.llmapi import fake_llm_args as fakes
from tests.engine.llmapi.recipes import SECTIONS, recipe
from toolkit.engine.llmapi import probe
from toolkit.engine.llmapi.config_rules import judge
from toolkit.engine.llmapi.deployment import llm_args_text, probe_input, texts
from toolkit.engine.llmapi.notes import recipe_notes
from toolkit.engine.llmapi.profiles import RELEASES, profile
from toolkit.engine.llmapi.rules import recipe_problems
from toolkit.registry import DRAFTERS

FAKES = [fakes.old("DraftTarget"), fakes.new("at least"), fakes.new("at most"), fakes.unknown()]
flags = st.booleans()
schedule = st.lists(
    st.fixed_dictionaries({"batch": st.integers(1, 64), "draft_len": st.integers(0, 8)}),
    min_size=1, max_size=4,
)  # fmt: skip
OPTIONS = {
    "eagle3": {
        "one_model": flags,
        "use_dynamic_tree": flags,
        "dynamic_tree_max_top_k": st.integers(1, 64),
        "max_total_draft_tokens": st.integers(1, 128),
        "eagle3_layers_to_capture": st.lists(st.integers(0, 80), min_size=1, max_size=4),
        "sa_config": st.just({"threshold": 4}),
    },
    "mtp": {
        "use_mtp_vanilla": flags,
        "use_relaxed_acceptance_for_thinking": flags,
        "relaxed_topk": st.integers(1, 10),
        "relaxed_delta": st.floats(0, 1),
        "begin_thinking_phase_token": st.integers(0, 1000),
    },
    "ngram": {"max_matching_ngram_size": st.integers(1, 8)},
    "sa": {
        "max_matching_ngram_size": st.integers(-1, 70),
        "enable_global_pool": flags,
        "global_pool_size": st.integers(1, 64),
    },
    "pard": {"mask_token_id": st.integers(0, 1000)},
    "dflash": {"target_layer_ids": st.lists(st.integers(0, 40), max_size=5)},
    "dspark": {"block_size": st.integers(1, 16), "markov_rank": st.integers(1, 256)},
}
PYTORCH = {
    "max_concurrency": st.integers(1, 64),
    "greedy_only": flags,
    "rejection_sampling": flags,
    "penalties": flags,
    "block_reuse": flags,
    "cuda_graphs": flags,
    "overlap_scheduler": st.none() | flags,
    "attention_backend": st.sampled_from(["TRTLLM", "FLASHINFER", "VANILLA"]),
    "guided_decoding": st.none() | st.sampled_from(["xgrammar", "llguidance"]),
    "acceptance_gate": st.fixed_dictionaries(
        {"window": st.integers(1, 99)},
        optional={"min_rate": st.floats(0.1, 1), "min_accepted": st.floats(0.1, 4)},
    ),
}


@st.composite
def recipes(draw):
    drafter = draw(st.sampled_from(sorted(SECTIONS)))
    release = draw(st.sampled_from(RELEASES))
    options = draw(st.fixed_dictionaries({}, optional=OPTIONS.get(drafter, {})))
    length = draw(st.none() | schedule)
    if length:
        options["draft_length"] = {"policy": "schedule", "schedule": length}
    options["max_draft_len"] = draw(st.integers(1, 16))
    pytorch = draw(st.fixed_dictionaries({}, optional=PYTORCH))
    try:
        return recipe(drafter, release, pytorch=pytorch, **options)
    except ValidationError:
        return recipe(drafter, release, pytorch=pytorch)


@settings(max_examples=300, deadline=None)
@given(recipes())
def test_a_recipe_is_refused_in_words_or_written_so_that_its_release_takes_it(made):
    reason = DRAFTERS[made.speculation.drafter].unsupported_on("pytorch", made.tensorrt_llm)
    problems = recipe_problems(made)
    assert all(path and len(text.split()) > 1 for path, text in problems)
    if reason or problems:
        return
    assert all(recipe_notes(made))
    assert all(texts(made).values())
    args = yaml.safe_load(llm_args_text(made))
    config = args.get("speculative_config")
    if config:
        assert judge(profile(made.tensorrt_llm), config).problems == ()
    for classes in FAKES:
        with suppress(probe.Refused):  # anything else would be a traceback in a container
            fitted = probe.fit(classes, probe_input(made), probe.HERE)
            assert yaml.safe_load(probe.to_yaml(fitted)) == fitted
