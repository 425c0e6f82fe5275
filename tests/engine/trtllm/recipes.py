"""Recipes for backend tensorrt, made in a line."""

from toolkit.recipe.schema import Recipe

HEADS = {"checkpoint": "org/heads"}
SPECULATION = {
    "none": {},
    "draft_target": {"draft": {"checkpoint": "org/draft"}, "max_draft_len": 10},
    "ngram": {"max_draft_len": 10},
    "medusa": {"heads": HEADS},
    "eagle": {"heads": HEADS},
    "redrafter": {
        "heads": HEADS,
        "redrafter_num_beams": 4,
        "redrafter_draft_len_per_beam": 5,
    },
    "lookahead": {},
}
LIMITS = {"max_batch_size": 4, "max_input_len": 128, "max_seq_len": 200}


def made(
    drafter="draft_target", version="1.2.1", speculation=None, engine=None, target=None, **rest
):
    """A good recipe, but for what is given."""
    return Recipe.model_validate(
        {
            "name": "x",
            "backend": "tensorrt",
            "tensorrt_llm": version,
            "target": {"checkpoint": "org/target", **(target or {})},
            "speculation": {"drafter": drafter, **SPECULATION[drafter], **(speculation or {})},
            "engine": {**LIMITS, **(engine or {})},
            "tensorrt": rest,
        }
    )
