"""A model whose lm_head says some tokens only: converted whole, refused when its map is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.reduced_vocabulary import reduce_vocabulary
from tests.tiny import HIDDEN, VOCAB, write_checkpoint
from toolkit.checkpoint.convert import convert
from toolkit.checkpoint.drafts.kinds import refuse_head_as_model
from toolkit.checkpoint.read import Checkpoint
from toolkit.checkpoint.source import open_source
from toolkit.errors import CheckpointError
from toolkit.recipe.schema import ModelSpec

IDS = [7, 3, 249, 0, 100]


def model(tmp_path, family="llama", **config):
    return reduce_vocabulary(write_checkpoint(tmp_path / "model", family), IDS, **config)


def converted(directory, out, **parallel):
    words = {"checkpoint": str(directory), "dtype": "float16", "parallel": parallel}
    convert(open_source(str(directory)), out, ModelSpec.model_validate(words))
    return Checkpoint(out)


def edited(directory, change):
    [file] = directory.glob("*.safetensors")
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def problems(directory, tmp_path):
    with pytest.raises(CheckpointError) as raised:
        converted(directory, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    return raised.value.problems


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize("parallel", [{}, {"tp": 2}, {"pp": 2}])
def test_rows_and_map_come_back_as_they_were(tmp_path, family, parallel):
    directory = model(tmp_path, family)
    found = converted(directory, tmp_path / "out", **parallel)
    assert list(found.problems()) == []
    assert (found.config["lm_head_rows"], found.config["vocab_size"]) == (5, VOCAB)
    d2t = found.tensor("d2t")
    assert d2t.dtype == np.int64
    assert d2t.tolist() == [7, 2, 247, -3, 96]  # 7 - 0, 3 - 1, 249 - 2, 0 - 3, 100 - 4
    [file] = directory.glob("*.safetensors")
    rows = load_file(file)["lm_head.weight"].astype(np.float16)
    np.testing.assert_array_equal(found.tensor("lm_head.weight"), rows)
    assert found.tensor("transformer.vocab_embedding.weight").shape == (VOCAB, HIDDEN)


def test_a_map_of_int32_is_widened(tmp_path):
    directory = model(tmp_path)
    edited(directory, lambda t: t.update(d2t=t["d2t"].astype(np.int32)))
    assert converted(directory, tmp_path / "out").tensor("d2t").tolist() == [7, 2, 247, -3, 96]


def test_it_is_no_eagle3_head(tmp_path):
    refuse_head_as_model(str(model(tmp_path)))


def test_an_ordinary_model_has_neither_row_count_nor_map(tmp_path):
    directory = write_checkpoint(tmp_path / "model")
    found = converted(directory, tmp_path / "out")
    assert "lm_head_rows" not in found.config
    assert "d2t" not in found.names()


class TestRefused:
    def test_no_map(self, tmp_path):
        directory = model(tmp_path)
        edited(directory, lambda t: t.pop("d2t"))
        assert problems(directory, tmp_path) == ["d2t: missing; expected shape [5]"]

    def test_tokens_that_are_not_there_or_are_there_twice(self, tmp_path):
        directory = model(tmp_path)
        edited(directory, lambda t: t.update(d2t=np.array([7, 6, 248, -3, -5])))
        # 7, 7, 250, 0, -1
        assert problems(directory, tmp_path) == [
            "d2t: maps 2 draft id(s) outside the target's 250 tokens, first 2 to 250; the head is "
            "for another vocabulary",
            "d2t: maps 1 draft id(s) to a token that another one has",
        ]

    def test_a_map_of_floats(self, tmp_path):
        directory = model(tmp_path)
        edited(directory, lambda t: t.update(d2t=t["d2t"].astype(np.float32)))
        [said] = problems(directory, tmp_path)
        assert said == "d2t: has dtype float32, expected one of int64, int32"

    @pytest.mark.parametrize("rows", [VOCAB, 0, True, "5"])
    def test_a_row_count_that_is_none(self, tmp_path, rows):
        found = problems(model(tmp_path, lm_head_rows=rows), tmp_path)
        assert found == [
            f"config.json: lm_head_rows is {rows!r}, expected a number below vocab_size 250"
        ]

    def test_a_map_without_a_row_count(self, tmp_path):
        directory = write_checkpoint(tmp_path / "model")
        edited(directory, lambda t: t.update(d2t=np.zeros(VOCAB, np.int64)))
        [said] = problems(directory, tmp_path)
        assert said == "d2t: unexpected; this architecture has no such tensor"

    def test_an_architecture_that_has_none(self, tmp_path):
        found = problems(model(tmp_path, "qwen2"), tmp_path)
        assert "d2t: unexpected; this architecture has no such tensor" in found
