"""Heads that do not fit, do not split or are not what the recipe says: all problems, by name."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests import tiny_heads as heads
from tests.tiny import HIDDEN, VOCAB, hf_config, hf_tensors, write_checkpoint
from toolkit.checkpoint.heads.combine import convert_with_heads
from toolkit.checkpoint.heads.head import HeadSpec
from toolkit.checkpoint.heads.source import heads_identity, open_heads
from toolkit.checkpoint.source import open_source
from toolkit.errors import CheckpointError, InputError, MissingDependencyError
from toolkit.recipe.schema import ModelSpec, Parallel


def problems(tmp_path: Path, kind: str, checkpoint: str, *, model=None, tp=1, pp=1, **spec):
    model = str(model or write_checkpoint(tmp_path / "model"))
    head = HeadSpec(kind=kind, checkpoint=checkpoint, **spec)
    target = ModelSpec(checkpoint=model, dtype="float16", parallel=Parallel(tp=tp, pp=pp))
    with pytest.raises(CheckpointError) as caught:
        convert_with_heads(open_source(model), open_heads(head), tmp_path / "out", target, head)
    assert not (tmp_path / "out").exists()
    return caught.value.problems


def medusa(tmp_path, tensors, file="medusa_lm_head.safetensors"):
    return heads.write_heads(tmp_path / "heads", tensors, {}, file)


def test_every_wrong_tensor_is_named_at_once(tmp_path):
    tensors = heads.medusa(heads=2)
    del tensors["0.0.linear.bias"]
    tensors["1.0.linear.weight"] = np.zeros((HIDDEN, 2 * HIDDEN), np.float16)
    tensors["1.1.weight"] = np.zeros((VOCAB, HIDDEN), np.int8)
    tensors["extra"] = np.zeros(1, np.float16)
    path = medusa(tmp_path, tensors)
    where = f"heads {path}: "
    assert problems(tmp_path, "medusa", path) == [
        where + "0.0.linear.bias: missing; expected shape [64]",
        where + "1.0.linear.weight: has shape [64, 128], expected [64, 64] for this target",
        where + "1.1.weight: has dtype int8, expected one of float16, bfloat16, float32, float64",
        where + "extra: unexpected; no such head has this tensor",
    ]


def test_problems_of_target_and_heads_come_together(tmp_path):
    config = hf_config("llama")
    tensors = hf_tensors(config)
    del tensors["model.norm.weight"]
    model = write_checkpoint(tmp_path / "model", tensors=tensors)
    given = heads.medusa(heads=1)
    del given["0.1.weight"]
    found = problems(tmp_path, "medusa", medusa(tmp_path, given), model=model)
    assert len(found) == 2
    assert found[0].startswith("model.norm.weight: missing")
    assert "0.1.weight: missing; expected shape [250, 64]" in found[1]


def test_more_heads_than_the_file_has_are_refused(tmp_path):
    path = medusa(tmp_path, heads.medusa(heads=4))
    found = problems(tmp_path, "medusa", path, fields={"num_medusa_heads": 5})
    assert found == [f"heads {path}: holds 4 Medusa head(s), the recipe's num_medusa_heads is 5"]


def test_a_hole_among_the_heads_is_named(tmp_path):
    tensors = {n: t for n, t in heads.medusa(heads=3).items() if not n.startswith("1.")}
    (found,) = problems(tmp_path, "medusa", medusa(tmp_path, tensors))
    assert found.endswith("holds a Medusa head 2, but none of number 1")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("999.0.linear.bias", "but none of number 1, 2, 3, 4, 5 ..."),
        ("0.999.linear.bias", "a Medusa head of 1000 layers, at most 64 are possible"),
    ],
)
def test_a_name_that_claims_a_thousand_of_something_is_one_problem(tmp_path, name, said):
    tensors = heads.medusa(heads=1) | {name: np.zeros(HIDDEN, np.float16)}
    (found,) = problems(tmp_path, "medusa", medusa(tmp_path, tensors))
    assert found.endswith(said)


def test_a_file_without_heads_says_what_it_looked_for(tmp_path):
    path = medusa(tmp_path, {"weight": np.zeros(1, np.float16)})
    (found,) = problems(tmp_path, "medusa", path)
    assert "no tensor is named like 0.0.linear.weight" in found


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_attention_heads", 0),
        ("num_attention_heads", "four"),
        ("num_hidden_layers", 10**9),
        ("intermediate_size", None),
        ("head_dim", "wide"),
        ("max_position_embeddings", -1),
        ("rms_norm_eps", "small"),
        ("num_key_value_heads", True),
    ],
)
def test_eagles_config_is_checked(tmp_path, key, value):
    config = heads.eagle_config() | {key: value}
    path = heads.write_heads(tmp_path / "heads", heads.eagle(), config)
    found = problems(tmp_path, "eagle", path)
    assert any(f"config.json: {key} is {value!r}, expected" in text for text in found)


def test_other_sizes_than_the_targets_are_named_with_both(tmp_path):
    tensors = heads.eagle()
    tensors["embed_tokens.weight"] = np.zeros((256, HIDDEN), np.float16)
    path = heads.write_heads(
        tmp_path / "heads", tensors, heads.eagle_config(vocab_size=256, hidden_size=32)
    )
    found = problems(tmp_path, "eagle", path)
    where = f"heads {path}: "
    assert where + "config.json: hidden_size 32, the target's is 64" in found
    assert where + "config.json: vocab_size 256, the target's is 250" in found
    assert (
        where + "embed_tokens.weight: has shape [256, 64], expected [250, 64] for this target"
    ) in found


@pytest.mark.parametrize("sign", ["d2t", "midlayer.hidden_norm.weight", "fc.weight", "config"])
def test_an_eagle3_head_is_refused_with_the_reason_and_the_way_out(tmp_path, sign):
    tensors, config = heads.eagle(), heads.eagle_config()
    if sign == "config":
        config["draft_vocab_size"] = 128
    else:
        tensors[sign] = heads.eagle3()[sign]
    path = heads.write_heads(tmp_path / "heads", tensors, config)
    (found,) = problems(tmp_path, "eagle", path)
    assert "is an EAGLE-3 head" in found
    assert "backend: pytorch" in found


def test_a_whole_eagle3_head_is_one_problem(tmp_path):
    path = heads.write_heads(tmp_path / "heads", heads.eagle3(), heads.eagle3_config())
    assert len(problems(tmp_path, "eagle", path)) == 1


def test_a_head_of_another_rotary_embedding_is_refused(tmp_path):
    scaling = {"rope_type": "llama3", "factor": 32.0}
    config = heads.eagle_config(rope_theta=500000.0, rope_scaling=scaling)
    path = heads.write_heads(tmp_path / "heads", heads.eagle(), config)
    found = problems(tmp_path, "eagle", path)
    assert "rope_theta 500000.0, the target's is 10000.0" in found[0]
    assert "rope_scaling" in found[1]
    assert "the target's is None" in found[1]


def test_eagle_has_no_pipeline_stages(tmp_path):
    path = heads.write_heads(tmp_path / "heads", heads.eagle(), heads.eagle_config())
    (found,) = problems(tmp_path, "eagle", path, pp=2)
    assert "parallel.pp is 2" in found


def test_heads_that_the_ranks_do_not_divide_are_refused(tmp_path):
    path = heads.write_heads(
        tmp_path / "heads", heads.redrafter(exit_dim=97), heads.redrafter_config(97)
    )
    found = problems(tmp_path, "redrafter", path, tp=2)
    assert any("lm_head.0.linear.weight: parallel.tp 2 does not divide its 97" in f for f in found)


@pytest.mark.parametrize(
    ("kind", "family", "release", "allowed"),
    [
        ("medusa", "gemma", (1, 2), "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM"),
        ("eagle", "qwen2", (1, 2), "LlamaForCausalLM, MistralForCausalLM"),
        ("redrafter", "qwen2", (0, 16), "LlamaForCausalLM, MistralForCausalLM"),
        ("redrafter", "qwen3", (1, 2), "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM"),
    ],
)
def test_targets_that_the_release_has_no_such_model_for(tmp_path, kind, family, release, allowed):
    model = write_checkpoint(tmp_path / "model", family)
    path = heads.write_heads(tmp_path / "heads", heads.eagle(), heads.eagle_config())
    if kind == "medusa":
        path = medusa(tmp_path, heads.medusa())
    (found,) = problems(tmp_path, kind, path, model=model, release=release)
    assert found.endswith(f"has {kind} for {allowed}")


@pytest.mark.parametrize("key", ["hidden_size", "exit_dim", "num_draft_layers"])
@pytest.mark.parametrize("value", ["many", 10**10])
def test_redrafters_config_is_checked(tmp_path, key, value):
    config = heads.redrafter_config() | {key: value}
    path = heads.write_heads(tmp_path / "heads", heads.redrafter(), config)
    (found,) = problems(tmp_path, "redrafter", path)
    assert f"config.json: {key} is {value!r}, expected a positive integer" in found


class RunsCode:
    def __reduce__(self):
        return print, ("code ran",)


def test_a_pickle_that_would_run_code_is_not_opened(tmp_path, capfd):
    import torch

    directory = tmp_path / "heads"
    directory.mkdir()
    torch.save({"0.0.linear.weight": RunsCode()}, directory / "medusa_lm_head.pt")
    with pytest.raises(CheckpointError, match="could run code"):
        open_heads(HeadSpec(kind="medusa", checkpoint=str(directory)))
    (directory / "medusa_lm_head.pt").write_bytes(pickle.dumps(RunsCode()))
    with pytest.raises(CheckpointError):
        open_heads(HeadSpec(kind="medusa", checkpoint=str(directory)))
    assert "code ran" not in capfd.readouterr().out


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"nothing of the kind" * 50])
def test_a_damaged_pt_file_is_one_clear_error(tmp_path, content):
    (tmp_path / "medusa_lm_head.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"medusa_lm_head\.pt"):
        open_heads(HeadSpec(kind="medusa", checkpoint=str(tmp_path)))


@pytest.mark.parametrize("value", [[1, 2], {"a": 1, "b": {"c": 2}}, {}])
def test_a_pt_file_without_plain_tensors_is_refused(tmp_path, value):
    import torch

    torch.save(value, tmp_path / "medusa_lm_head.pt")
    with pytest.raises(CheckpointError, match="expected"):
        open_heads(HeadSpec(kind="medusa", checkpoint=str(tmp_path)))


def test_without_torch_a_pt_file_names_the_extra(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    path = tmp_path / "medusa_lm_head.pt"
    path.write_bytes(b"PK")
    with pytest.raises(MissingDependencyError, match=r"spectool\[train\]"):
        open_heads(HeadSpec(kind="medusa", checkpoint=str(tmp_path)))


def test_a_directory_without_weights_says_which_files_it_expected(tmp_path):
    with pytest.raises(CheckpointError, match=r"medusa_lm_head\.safetensors or medusa_lm_head\.pt"):
        open_heads(HeadSpec(kind="medusa", checkpoint=str(tmp_path)))


def test_heads_cannot_be_a_gguf_or_a_package(tmp_path):
    with pytest.raises(InputError, match=r"expected a directory.*\(this is pip\)"):
        open_heads(HeadSpec(kind="medusa", checkpoint="pip:some-model==1.0"))


def test_heads_on_the_hub_are_not_fetched_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    spec = HeadSpec(kind="medusa", checkpoint="nobody/heads", revision="main")
    with pytest.raises(CheckpointError, match="not in the hub cache, and the network is off"):
        open_heads(spec, offline=True)
    assert heads_identity(spec) is None
    pinned = HeadSpec(kind="medusa", checkpoint="nobody/heads", revision="0" * 40)
    assert heads_identity(pinned) == {"hub": "nobody/heads", "commit": "0" * 40}
