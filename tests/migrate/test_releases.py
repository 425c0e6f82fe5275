"""The same recipe for another release: what is spelled, read or refused otherwise."""

from __future__ import annotations

import pytest

from tests.migrate.recipes import HEADS, recipe, schedule
from tests.migrate.test_migrate import said
from toolkit.engine.llmapi.emit import speculative_config
from toolkit.migrate import migrate

NGRAM = {"drafter": "ngram", "max_draft_len": 4}
EAGLE3 = {"drafter": "eagle3", "heads": HEADS}


def moved(speculation, version, since="1.2.1", **changes):
    return migrate(recipe(speculation, "pytorch", tensorrt_llm=since, **changes), version)


def test_the_keys_of_a_schedule_turn_around():
    # "From batch 1, 4 and 8 on" is "up to batch 3 and 7, and nothing above".
    options = {**NGRAM, "draft_length": schedule((1, 4), (4, 2), (8, 0))}
    found = moved(options, "1.3.0rc27")
    ((kind, text),) = said(found, "speculative_config.draft_len_schedule")
    assert kind == "changed"
    assert text.startswith("{1: 4, 4: 2, 8: 0} -> {3: 4, 7: 2}: ")
    assert "'batch at least this'" in text
    assert "'batch at most this'" in text


def test_the_draft_is_named_by_another_key():
    found = moved(EAGLE3, "1.3.0rc27")
    ((kind, text),) = said(found, "speculative_config.speculative_model_dir")
    assert (kind, text) == ("renamed", "speculative_config.speculative_model")
    assert said(found, "speculative_config.decoding_type") == [("changed", "Eagle -> Eagle3")]


def test_nothing_is_said_of_keys_that_stay():
    found = moved(NGRAM, "1.2.2")
    assert [c for c in found.changes if c.field.startswith("speculative_config")] == []


def test_mtp_counts_tokens_in_another_key():
    found = moved({"drafter": "mtp", "max_draft_len": 3}, "1.3.0rc27")
    config = speculative_config(found.recipe)
    assert config["max_draft_len"] == 3
    assert said(found, "speculative_config.num_nextn_predict_layers")[0][0] == "dropped"
    assert said(found, "speculative_config.max_draft_len")[0][0] == "changed"


@pytest.mark.parametrize(
    ("gate", "version"),
    [({"window": 9, "min_accepted": 1.5}, "1.3.0rc27"), ({"window": 9, "min_rate": 0.4}, "1.2.1")],
)
def test_a_gate_that_counts_something_else_is_dropped(gate, version):
    since = "1.2.1" if version != "1.2.1" else "1.3.0rc27"
    found = moved(EAGLE3, version, since, pytorch={"acceptance_gate": gate})
    assert found.recipe.pytorch.acceptance_gate is None
    assert said(found, "pytorch.acceptance_gate")[0][0] == "dropped"


def test_two_models_become_one_where_there_is_only_one():
    found = moved({**EAGLE3, "one_model": False}, "1.3.0rc27")
    assert found.recipe.speculation.one_model is True
    assert said(found, "speculation.one_model")[0][0] == "dropped"


def test_a_tree_becomes_a_chain_where_there_are_no_trees():
    tree = {"use_dynamic_tree": True, "dynamic_tree_max_top_k": 4, "max_total_draft_tokens": 10}
    found = moved({**EAGLE3, **tree}, "1.2.1", "1.3.0rc27")
    assert found.recipe.speculation.use_dynamic_tree is False
    assert found.recipe.speculation.dynamic_tree_max_top_k is None
    assert found.recipe.speculation.max_draft_len == 3


def test_a_limit_beside_a_schedule_becomes_its_end():
    options = {**NGRAM, "draft_length": schedule((1, 4), (4, 2), (12, 1))}
    found = moved(options, "1.3.0rc27", pytorch={"max_concurrency": 8})
    steps = found.recipe.speculation.draft_length.schedule
    assert [(e.batch, e.draft_len) for e in steps] == [(1, 4), (4, 2), (9, 0)]
    assert found.recipe.pytorch.max_concurrency is None
    assert said(found, "pytorch.max_concurrency")[0][0] == "renamed"


def test_a_key_in_the_old_release_s_words_is_dropped_with_the_reason():
    more = {"speculative_config": {"mtp_eagle_one_model": True}}
    found = moved({"drafter": "mtp"}, "1.3.0rc27", pytorch=more)
    assert found.recipe.pytorch.speculative_config == {}
    ((kind, text),) = said(found, "pytorch.speculative_config.mtp_eagle_one_model")
    assert kind == "dropped"
    assert "always runs in the target's graph" in text


def test_a_key_of_the_llm_api_that_is_gone_is_dropped():
    found = moved(NGRAM, "1.3.0rc27", pytorch={"llm_args": {"sampler_type": "TorchSampler"}})
    assert found.recipe.pytorch.llm_args == {}
    assert said(found, "pytorch.llm_args.sampler_type")[0][0] == "dropped"


def test_a_release_newer_than_any_table_is_left_to_the_probe():
    assert any("newer than any release known" in note for note in moved(NGRAM, "9.0.0").notes)


def test_what_the_release_does_without_a_word_is_noted():
    assert any("repetition penalties" in note for note in moved(EAGLE3, "1.3.0rc27").notes)
