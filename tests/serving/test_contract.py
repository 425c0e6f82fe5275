"""Our tables against the tensors of TensorRT-LLM's own templates."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from toolkit.serving.contract import CONTRACTS, Tensor

GOLDEN = Path(__file__).parents[1] / "golden" / "tensorrt_llm_tensors.txt"


def upstream(model: str, side: str) -> dict[str, Tensor]:
    """`name TYPE[dims] flags; ...` of one model in the golden file, later additions included."""
    sections = [part.partition("###")[0] for part in GOLDEN.read_text().split(f"/{model}\n")[1:]]
    lines = [line for line in "".join(sections).splitlines() if line.startswith(f"{side}: ")]
    tensors = {}
    for item in "; ".join(line.removeprefix(f"{side}: ") for line in lines).split("; "):
        name, kind, *flags = item.split()
        dtype, dims = re.fullmatch(r"(\w+)\[(.*)\]", kind).groups()
        tensors[name] = Tensor(
            name,
            dtype,
            tuple(int(dim) for dim in dims.split(",")),
            optional="opt" in flags,
            reshape="reshape[]" in flags,
            ragged="ragged" in flags,
        )
    return tensors


@pytest.mark.parametrize("side", ["inputs", "outputs"])
@pytest.mark.parametrize("model", [name for name in CONTRACTS if name != "spectool"])
def test_every_tensor_is_declared_as_upstream_declares_it(model, side):
    wanted = upstream(model, side)
    for tensor in getattr(CONTRACTS[model], side):
        assert tensor == wanted[tensor.name]


@pytest.mark.parametrize("model", [name for name in CONTRACTS if name != "spectool"])
def test_what_upstream_requires_is_an_input_of_ours(model):
    required = {name for name, tensor in upstream(model, "inputs").items() if not tensor.optional}
    assert required <= {tensor.name for tensor in CONTRACTS[model].inputs}


def test_one_model_is_asked_in_the_words_of_the_bls_model():
    bls = {tensor.name: tensor for tensor in CONTRACTS["tensorrt_llm_bls"].inputs}
    assert all(bls[tensor.name] == tensor for tensor in CONTRACTS["spectool"].inputs)
