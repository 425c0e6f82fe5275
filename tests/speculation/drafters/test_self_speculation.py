import pytest

from toolkit.errors import InputError
from toolkit.recipe.load import load_recipe
from toolkit.recipe.schema import ModelSpec
from toolkit.registry import DRAFTERS

TARGET = ModelSpec(checkpoint="some/model", dtype="float32")


def options(**fields):
    return DRAFTERS["self_speculation"].Options(**fields)


def models(target=TARGET, **fields):
    return DRAFTERS["self_speculation"].models(options(**fields), target)


def test_the_draft_is_the_target_with_fewer_layers():
    assert models(layers=[0, 1, 3]) == {"draft": TARGET.model_copy(update={"layers": (0, 1, 3)})}


def test_layers_are_counted_in_the_target_that_is_used():
    part = TARGET.model_copy(update={"layers": (2, 4, 6, 8)})
    assert models(part, layers=[0, 3])["draft"].layers == (2, 8)


@pytest.mark.parametrize("layers", [[], [1, 1], [2, 1], [-1]])
def test_a_subset_that_is_none_is_refused(layers):
    with pytest.raises(ValueError, match=r"layers"):
        options(layers=layers)


@pytest.mark.parametrize("backend", ["tensorrt", "pytorch"])
def test_other_backends_have_no_engine_of_a_part(tmp_path, backend):
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"name: x\nbackend: {backend}\ntarget: {{checkpoint: some/model}}\n"
        "speculation: {drafter: self_speculation, layers: [0, 1]}\n"
    )
    with pytest.raises(InputError, match="use backend: cpu, or drafter: draft_target"):
        load_recipe(path)
