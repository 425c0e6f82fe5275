"""BuiltModels travels to another process as JSON."""

from pathlib import Path

import pytest

from tests.engine_fixtures import tiny_recipe
from toolkit.engine.built import BuiltModels
from toolkit.errors import InputError


def test_json_gives_the_same_back(tmp_path):
    recipe = tiny_recipe(tmp_path, max_draft_len=3)
    built = BuiltModels(
        recipe=recipe,
        engines={"target": Path("/e/t"), "draft": Path("/e/d")},
        tokenizers={"target": Path("/t/t"), "draft": Path("/t/d")},
    )
    assert BuiltModels.from_json(built.to_json()) == built
    assert built.tokenizer_dir == Path("/t/t")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"recipe": {}, "engines": {}}'])
def test_anything_else_is_refused(text):
    with pytest.raises(InputError, match="not a description of built models"):
        BuiltModels.from_json(text)
