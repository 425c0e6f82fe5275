"""One recipe a drafter, as an export sees it: every field that another server may be told."""

from __future__ import annotations

from typing import Any

from toolkit.recipe.schema import Recipe

HEADS = {"checkpoint": "org/heads", "revision": "v2"}
SPECULATION: dict[str, dict[str, Any]] = {
    "none": {},
    "ngram": {"max_draft_len": 6, "max_matching_ngram_size": 4, "min_matching_ngram_size": 2},
    "suffix": {"max_draft_len": 6, "max_draft_factor": 2.0, "min_matching_ngram_size": 2},
    "self_speculation": {"max_draft_len": 2, "layers": [0, 1]},
    "draft_target": {
        "max_draft_len": 5,
        "draft": {"checkpoint": "org/draft", "revision": "v1", "parallel": {"tp": 1}},
    },
    "medusa": {"heads": HEADS},
    "eagle": {"heads": HEADS},
    "eagle3": {"max_draft_len": 3, "heads": HEADS},
    "mtp": {"max_draft_len": 2},
    "pard": {"max_draft_len": 8, "draft": HEADS},
    "dflash": {"max_draft_len": 8, "draft": HEADS},
    "dspark": {"max_draft_len": 7, "draft": HEADS},
    "sa": {"max_draft_len": 6},
    "redrafter": {"heads": HEADS},
    "lookahead": {},
}


def recipe_for(drafter: str, **changes: Any) -> Recipe:
    """A two-GPU recipe with that drafter; `changes` replace whole sections."""
    data: dict[str, Any] = {
        "name": f"example-{drafter}",
        "target": {"checkpoint": "org/target", "revision": "main", "parallel": {"tp": 2}},
        "speculation": {"drafter": drafter, **SPECULATION[drafter]},
        "engine": {
            "max_batch_size": 4,
            "max_input_len": 3072,
            "max_seq_len": 4096,
            "max_num_tokens": 8192,
        },
        "serve": {"http_port": 8080},
    }
    return Recipe.model_validate({**data, **changes})


def one_device(peer: str) -> dict[str, Any]:
    """OpenVINO runs a model on one device only."""
    return {"target": {"checkpoint": "org/target"}} if peer == "openvino" else {}
