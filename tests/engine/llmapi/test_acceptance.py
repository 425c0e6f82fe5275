"""Which speculative_config three snapshots of TensorRT-LLM take, as their sources say it.

A 1.2.0rc2, B main of early 2026 (first previews of 1.3), C main of mid 2026 (late previews of 1.3).
"""

from __future__ import annotations

import pytest

from tests.engine.llmapi.recipes import recipe
from toolkit.engine.llmapi.config_rules import judge
from toolkit.engine.llmapi.emit import speculative_config
from toolkit.engine.llmapi.profiles import profile
from toolkit.engine.llmapi.rules import recipe_problems
from toolkit.registry import DRAFTERS

SNAPSHOTS = {"A": "1.2.0rc2", "B": "1.3.0rc1", "C": "1.3.0rc24"}
EAGLE = {"decoding_type": "Eagle", "max_draft_len": 4, "speculative_model_dir": "/d"}
EAGLE3 = {"decoding_type": "Eagle3", "max_draft_len": 4, "speculative_model": "/d"}
TREE = {"use_dynamic_tree": True, "dynamic_tree_max_topK": 10, "max_total_draft_tokens": 40}
# case -> (speculative_config, whether A, B and C take it, what the refusal says to write)
TABLE = {
    "eagle + directory": (EAGLE, "yyy", ""),
    "eagle3 + model": (EAGLE3, "-yy", "write Eagle"),
    "eagle without a model": ({"decoding_type": "Eagle", "max_draft_len": 4}, "---", "required"),
    "DraftTarget": (
        {"decoding_type": "DraftTarget", "max_draft_len": 4, "speculative_model_dir": "/d"},
        "y--", "write Draft_Target",
    ),
    "Draft_Target": (
        {"decoding_type": "Draft_Target", "max_draft_len": 4, "speculative_model": "/d"},
        "-yy", "write DraftTarget",
    ),
    "mtp nextn": ({"decoding_type": "MTP", "num_nextn_predict_layers": 3}, "yyy", ""),
    "mtp max_draft_len": ({"decoding_type": "MTP", "max_draft_len": 3}, "yyy", ""),
    "ngram": (
        {"decoding_type": "NGram", "max_draft_len": 5, "max_matching_ngram_size": 3}, "yyy", "",
    ),
    "ngram without a length": (
        {"decoding_type": "NGram", "max_matching_ngram_size": 3}, "y--", "needs 1 or more",
    ),
    "medusa": (
        {"decoding_type": "Medusa", "max_draft_len": 4}, "---", "backend: tensorrt",
    ),
    "schedule {4: 4, 8: 2}": (
        {**EAGLE, "draft_len_schedule": {4: 4, 8: 2}}, "--y", "key 1|max_concurrency",
    ),
    "schedule {1: 4, 8: 2}": (
        {**EAGLE, "draft_len_schedule": {1: 4, 8: 2}}, "-yy", "max_concurrency",
    ),
    "max_concurrency": ({**EAGLE, "max_concurrency": 8}, "yyy", ""),
    "acceptance window": (
        {**EAGLE, "acceptance_window": 100, "acceptance_length_threshold": 1.0},
        "yy-", "acceptance_rate_threshold",
    ),
    "acceptance rate": (
        {**EAGLE, "acceptance_rate_window_size": 100, "acceptance_rate_threshold": 0.3},
        "--y", "acceptance_length_threshold",
    ),
    "dynamic tree": ({**EAGLE3, **TREE}, "-yy", "write Eagle"),
    "documented tree with max_batch_size": (
        {**EAGLE3, **TREE, "max_batch_size": 4}, "---", "top level|write Eagle",
    ),
    "documented use_sa_spec": (
        {**EAGLE, "use_sa_spec": True}, "---", "sa_config: {threshold: 4}|1.3",
    ),
    "sa_config": ({**EAGLE3, "sa_config": {"threshold": 4}}, "--y", "1.3|write Eagle"),
    "pytorch_weights_path": (
        {"decoding_type": "Eagle", "max_draft_len": 4, "pytorch_weights_path": "/d"},
        "---", "write speculative_model",
    ),
}  # fmt: skip
CELLS = [
    (case, snapshot, taken == "y")
    for case, (_, row, _) in TABLE.items()
    for snapshot, taken in zip(SNAPSHOTS, row, strict=True)
]


@pytest.mark.parametrize(("case", "snapshot", "taken"), CELLS)
def test_a_snapshot_takes_what_its_source_takes(case, snapshot, taken):
    config, _, fix = TABLE[case]
    verdict = judge(profile(SNAPSHOTS[snapshot]), config)
    assert verdict.accepted == taken, verdict.problems
    if not taken:
        said = " ".join(text for _, text in verdict.problems)
        assert any(part in said for part in fix.split("|")), said


@pytest.mark.parametrize("snapshot", SNAPSHOTS)
@pytest.mark.parametrize(
    "drafter", ["eagle3", "draft_target", "mtp", "ngram", "pard", "dflash", "dspark", "sa"]
)
def test_what_we_write_falls_in_an_accepted_cell(drafter, snapshot):
    made = recipe(drafter, SNAPSHOTS[snapshot])
    rules = profile(made.tensorrt_llm)
    if drafter not in rules.methods:
        assert "it came with" in DRAFTERS[drafter].unsupported_on("pytorch", made.tensorrt_llm)
        return
    assert recipe_problems(made) == []
    assert judge(rules, speculative_config(made)).problems == ()


# A refused cell in a recipe: raw keys go through pytorch.speculative_config.
REFUSED = [
    ("eagle3", "1.3.0rc24", {"pytorch_weights_path": "/d"}, "write speculative_model"),
    ("eagle3", "1.3.0rc24", {"use_sa_spec": True}, "sa_config: {threshold: 4}"),
    ("eagle3", "1.3.0rc24", {"max_batch_size": 4}, "top level"),
    ("eagle3", "1.3.0rc24", {"acceptance_window": 100}, "acceptance_rate_threshold"),
    ("eagle3", "1.3.0rc1", {"acceptance_rate_threshold": 0.3}, "acceptance_length_threshold"),
    ("eagle3", "1.2.0rc2", {"draft_len_schedule": {1: 3}}, "max_concurrency"),
    ("eagle3", "1.2.0rc2", {"sa_config": {"threshold": 4}}, "came with 1.3"),
    ("eagle3", "1.3.0rc1", {"draft_len_schedule": {4: 3, 8: 2}}, "key 1"),
    ("mtp", "1.3.0rc27", {"mtp_eagle_one_model": False}, "remove it"),
    ("eagle3", "1.3.0rc27", {"greedy_sampling": True}, "remove it"),
    ("eagle3", "1.4.0rc4", {"num_eagle_layers": 3}, "remove it"),
    ("ngram", "1.3.0rc24", {"use_rejection_sampling": True}, "drafts without probabilities"),
    ("eagle3", "1.2.1", {"decoding_type": "Eagle3"}, "the recipe's other fields say it"),
]


@pytest.mark.parametrize(("drafter", "release", "keys", "fix"), REFUSED)
def test_a_refused_cell_in_a_recipe_names_the_fix(drafter, release, keys, fix):
    found = recipe_problems(recipe(drafter, release, pytorch={"speculative_config": keys}))
    [key] = keys
    texts = [text for path, text in found if path == ("pytorch", "speculative_config", key)]
    assert any(fix in text for text in texts), found


MEANT = [
    # drafter options, release, where, what it says
    ("eagle3", "1.2.1", {"use_dynamic_tree": True, "dynamic_tree_max_top_k": 4}, "came with 1.3"),
    ("eagle3", "1.3.0rc24", {"one_model": False}, "ignores false"),
    ("eagle3", "1.3.0rc1", {"sa_config": {"threshold": 4}}, "came with later ones of 1.3"),
    ("mtp", "1.2.1", {"heads": {"checkpoint": "org/mtp"}}, "from the target only"),
    ("mtp", "1.2.1", {"relaxed_topk": 10}, "changes the output"),
    ("ngram", "1.2.1", {"min_matching_ngram_size": 2}, "no such limit"),
    (
        "eagle3", "1.2.0rc2",
        {
            "draft_length": {
                "policy": "schedule", "schedule": [{"batch": 1, "draft_len": 3}],
            }
        },
        "max_concurrency",
    ),
    ("eagle3", "1.2.1", {"draft_length": {"policy": "adaptive"}}, "fixed or schedule"),
    (
        "mtp", "1.3.0rc24",
        {
            "use_mtp_vanilla": True,
            "draft_length": {"policy": "schedule", "schedule": [{"batch": 1, "draft_len": 3}]},
        },
        "cannot change here",
    ),
    (
        "eagle3", "1.3.0rc24",
        {"draft_length": {"policy": "schedule", "schedule": [{"batch": 2, "draft_len": 2}]}},
        "at batch 1",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("drafter", "release", "options", "said"), MEANT)
def test_an_option_that_a_release_lacks_is_refused_in_words(drafter, release, options, said):
    found = recipe_problems(recipe(drafter, release, **options))
    assert any(said in text for _, text in found), found
