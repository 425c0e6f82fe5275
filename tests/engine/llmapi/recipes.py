"""Recipes for backend pytorch, small and whole."""

from toolkit.recipe.load import load_recipe
from toolkit.recipe.schema import Recipe

# One plain recipe section for each drafter; hub ids need no files.
SECTIONS = {
    "none": {},
    "draft_target": {"draft": {"checkpoint": "org/draft"}},
    "eagle3": {"heads": {"checkpoint": "org/eagle3-head"}},
    "mtp": {},
    "ngram": {},
    "pard": {"draft": {"checkpoint": "org/pard"}},
    "dflash": {"draft": {"checkpoint": "org/dflash"}},
    "dspark": {"draft": {"checkpoint": "org/dspark"}},
    "sa": {},
}


def recipe(drafter: str, release: str = "1.2.1", /, *, pytorch=None, engine=None, **speculation):
    """A recipe that nothing has checked yet: the rules are what is tested."""
    return Recipe.model_validate(
        {
            "name": f"some-{drafter}",
            "backend": "pytorch",
            "tensorrt_llm": release,
            "target": {"checkpoint": "org/target"},
            "speculation": {"drafter": drafter, **SECTIONS[drafter], **speculation},
            "engine": engine or {},
            "pytorch": pytorch or {},
        }
    )


def load(tmp_path, text: str) -> Recipe:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return load_recipe(str(path))
