"""The probe fits one recipe to classes with other names, or says in a sentence why it cannot."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
import yaml

from tests.engine.llmapi import fake_llm_args as fakes
from tests.engine.llmapi.recipes import recipe
from toolkit.engine.llmapi import probe
from toolkit.engine.llmapi.deployment import probe_input

HOME = Path("/deployment")


def fitted(classes, made):
    return probe.fit(classes, probe_input(made), HOME)["speculative_config"]


def test_it_needs_the_standard_library_and_tensorrt_llm_only():
    tree = ast.parse(Path(probe.__file__).read_text(encoding="utf-8"))
    names = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in (
            [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module]
        )
    }
    assert names <= sys.stdlib_module_names


@pytest.mark.parametrize("word", ["DraftTarget", "Draft_Target"])
def test_the_table_of_an_old_release_decides_the_decoding_type(word):
    assert fitted(fakes.old(word), recipe("draft_target", "1.2.1")) == {
        "decoding_type": word,
        "speculative_model_dir": "org/draft",
        "max_draft_len": 4,
    }


def test_a_literal_field_decides_it_on_a_new_one():
    assert fitted(fakes.new("at most"), recipe("draft_target", "1.2.0rc2")) == {
        "decoding_type": "Draft_Target",
        "speculative_model": "org/draft",
        "max_draft_len": 4,
    }


def test_the_draft_of_the_deployment_gets_its_full_path():
    config = fitted(fakes.new("at most"), recipe("eagle3", "1.2.0rc2"))
    assert config["decoding_type"] == "Eagle3"
    assert config["speculative_model"] == "/deployment/draft"
    old = fitted(fakes.old("DraftTarget"), recipe("eagle3", "1.3.0rc24"))
    assert (old["decoding_type"], old["speculative_model_dir"]) == ("Eagle", "/deployment/draft")


def test_mtp_drafts_as_many_tokens_as_the_recipe_says_on_either_side():
    made = recipe("mtp", "1.2.1", max_draft_len=3, begin_thinking_phase_token=7)
    assert fitted(fakes.old("DraftTarget"), made) == {
        "decoding_type": "MTP",
        "num_nextn_predict_layers": 3,
        "BEGIN_THINKING_PHASE_TOKEN": 7,
    }
    assert fitted(fakes.new("at most"), made) == {
        "decoding_type": "MTP",
        "max_draft_len": 3,
        "begin_thinking_phase_token": 7,
    }


STEPS = [{"batch": 1, "draft_len": 3}, {"batch": 4, "draft_len": 1}, {"batch": 8, "draft_len": 0}]


@pytest.mark.parametrize("release", ["1.3.0rc1", "1.3.0rc24"])
@pytest.mark.parametrize(
    # From batch 1 on 3, from 4 on 1, from 8 on none: up to 3 it is 3, up to 7 it is 1.
    ("keys", "written"),
    [("at least", {1: 3, 4: 1, 8: 0}), ("at most", {3: 3, 7: 1})],
)
def test_a_schedule_means_the_same_on_both_readings_of_its_keys(release, keys, written):
    made = recipe("eagle3", release, draft_length={"policy": "schedule", "schedule": STEPS})
    assert fitted(fakes.new(keys), made)["draft_len_schedule"] == written


def test_a_schedule_that_ends_drafting_reaches_to_the_largest_batch():
    made = recipe(
        "eagle3", "1.3.0rc24", engine={"max_batch_size": 32},
        draft_length={"policy": "schedule", "schedule": STEPS[:2]},
    )  # fmt: skip
    assert fitted(fakes.new("at most"), made)["draft_len_schedule"] == {3: 3, 32: 1}


REFUSALS = [
    (fakes.old("DraftTarget"), ("pard", "1.3.0rc24", {}), "no pard on this release"),
    (
        fakes.old("DraftTarget"),
        ("eagle3", "1.3.0rc24", {"use_dynamic_tree": True, "dynamic_tree_max_top_k": 4}),
        "EagleDecodingConfig takes no use_dynamic_tree",
    ),
    (fakes.unknown(), ("eagle3", "1.4.0rc4", {}), "takes no draft"),
    (
        fakes.old("DraftTarget"),
        ("eagle3", "1.3.0rc1", {"draft_length": {"policy": "schedule", "schedule": STEPS}}),
        "takes no draft length by batch size",
    ),
]


@pytest.mark.parametrize(("classes", "made", "said"), REFUSALS)
def test_what_a_release_cannot_do_is_one_sentence(classes, made, said):
    drafter, release, options = made
    with pytest.raises(probe.Refused, match=said):
        fitted(classes, recipe(drafter, release, **options))


def test_keys_that_only_report_more_are_left_out_where_unknown(capsys):
    args = probe.fit(fakes.new("at most"), probe_input(recipe("eagle3", "1.2.1")), HOME)
    assert "return_perf_metrics" not in args
    assert "allow_advanced_sampling" not in args["speculative_config"]
    said = capsys.readouterr().err
    assert "left out return_perf_metrics" in said
    assert "left out allow_advanced_sampling" in said


def test_a_key_of_the_recipe_that_is_unknown_is_refused():
    made = recipe("ngram", "1.2.1", pytorch={"llm_args": {"stream_interval": 2}})
    with pytest.raises(probe.Refused, match="no 'stream_interval'"):
        probe.fit(fakes.new("at most"), probe_input(made), HOME)


def test_its_yaml_reads_back():
    args = {
        "a": {"b": [1, "x: y"], "c": None, "d": {}},
        "s": {1: 3, 4: 0},
        "t": "Ω\u2028 ' \" #",
        "f": 0.9,
    }
    assert yaml.safe_load(probe.to_yaml(args)) == args
