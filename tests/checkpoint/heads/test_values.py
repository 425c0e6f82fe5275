"""Values of converted heads, joined over ranks, against the tensors that went in."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests import tiny_heads as heads
from tests.tiny import HIDDEN, VOCAB, hf_config, hf_tensors, write_checkpoint
from toolkit.checkpoint.heads.combine import convert_with_heads
from toolkit.checkpoint.heads.head import HeadSpec
from toolkit.checkpoint.heads.source import open_heads
from toolkit.checkpoint.source import open_source
from toolkit.recipe.schema import ModelSpec, Parallel

EAGLE = {"max_draft_len": 31, "num_eagle_layers": 2, "max_non_leaves_per_layer": 10}


def convert(tmp_path: Path, kind: str, checkpoint: str, model=None, *, tp=1, pp=1, **spec):
    """(config.json, the tensors of every rank)"""
    model = str(model or write_checkpoint(tmp_path / "model"))
    target = ModelSpec(checkpoint=model, dtype="float16", parallel=Parallel(tp=tp, pp=pp))
    head = HeadSpec(kind=kind, checkpoint=checkpoint, **spec)
    out = tmp_path / "out"
    convert_with_heads(open_source(model), open_heads(head), out, target, head)
    ranks = [load_file(out / f"rank{rank}.safetensors") for rank in range(tp * pp)]
    return json.loads((out / "config.json").read_text()), ranks


def rows(ranks, name):
    return np.concatenate([rank[name] for rank in ranks])


def test_medusa_weights_arrive_unchanged(tmp_path):
    given = heads.medusa(heads=3, layers=2)
    path = heads.write_heads(tmp_path / "heads", given, {}, "medusa_lm_head.safetensors")
    config, ranks = convert(tmp_path, "medusa", path, tp=2)
    assert (config["num_medusa_heads"], config["num_medusa_layers"]) == (3, 2)
    for h in range(3):
        for layer in range(2):
            name = f"medusa_heads.{h}.medusa_layers.{layer}.linear"
            assert (rows(ranks, f"{name}.weight") == given[f"{h}.{layer}.linear.weight"]).all()
            assert (rows(ranks, f"{name}.bias") == given[f"{h}.{layer}.linear.bias"]).all()
        assert (rows(ranks, f"medusa_heads.{h}.lm_head.weight") == given[f"{h}.2.weight"]).all()


def test_heads_are_counted_in_the_file_and_not_in_config_json(tmp_path):
    path = heads.write_heads(
        tmp_path / "heads",
        heads.medusa(heads=4),
        {"medusa_num_heads": 2, "medusa_num_layers": 1},
        "medusa_lm_head.safetensors",
    )
    config, ranks = convert(tmp_path, "medusa", path)
    assert config["num_medusa_heads"] == 4
    assert "medusa_heads.3.lm_head.weight" in ranks[0]


def test_a_recipe_may_use_fewer_heads_than_the_file_has(tmp_path):
    path = heads.write_heads(
        tmp_path / "heads", heads.medusa(heads=4), {}, "medusa_lm_head.safetensors"
    )
    config, ranks = convert(tmp_path, "medusa", path, fields={"num_medusa_heads": 2})
    assert config["num_medusa_heads"] == 2
    names = {n.split(".")[1] for n in ranks[0] if n.startswith("medusa_heads.")}
    assert names == {"0", "1"}


def test_a_vocabulary_that_does_not_split_is_padded_with_zero_rows(tmp_path):
    # 250 rows over 4 ranks: 63 each, and the last rank has 61 rows and 2 of zeros.
    given = heads.medusa(heads=1)
    path = heads.write_heads(tmp_path / "heads", given, {}, "medusa_lm_head.safetensors")
    _, ranks = convert(tmp_path, "medusa", path, tp=4)
    parts = [rank["medusa_heads.0.lm_head.weight"] for rank in ranks]
    assert [part.shape for part in parts] == [(63, HIDDEN)] * 4
    assert (np.concatenate(parts)[:VOCAB] == given["0.1.weight"]).all()
    assert not parts[3][61:].any()


def test_medusa_on_a_tied_target_gets_the_embedding_as_lm_head(tmp_path):
    # Upstream's converter fails here: KeyError 'lm_head.weight'.
    model = write_checkpoint(tmp_path / "model", tie_word_embeddings=True)
    path = heads.write_heads(tmp_path / "heads", heads.medusa(), {}, "medusa_lm_head.safetensors")
    _, ranks = convert(tmp_path, "medusa", path, model)
    assert (ranks[0]["lm_head.weight"] == ranks[0]["transformer.vocab_embedding.weight"]).all()


def test_medusa_heads_go_with_the_last_pipeline_stage(tmp_path):
    path = heads.write_heads(tmp_path / "heads", heads.medusa(), {}, "medusa_lm_head.safetensors")
    _, ranks = convert(tmp_path, "medusa", path, pp=2)
    stages = [any(name.startswith("medusa_heads.") for name in rank) for rank in ranks]
    assert stages == [False, True]


def test_modelopt_files_hold_target_and_heads_together(tmp_path):
    config = hf_config("llama", medusa={"num_medusa_heads": 2, "num_medusa_layers": 1})
    own = heads.medusa(heads=2, prefix="medusa_heads.")
    model = write_checkpoint(tmp_path / "model", tensors=hf_tensors(config) | own)
    made, ranks = convert(tmp_path, "medusa", str(model), model)
    assert made["num_medusa_heads"] == 2
    assert (ranks[0]["medusa_heads.1.lm_head.weight"] == own["medusa_heads.1.1.weight"]).all()


def test_the_eagle_head_stands_once_for_every_depth(tmp_path):
    given = heads.eagle()
    path = heads.write_heads(tmp_path / "heads", given, heads.eagle_config())
    _, ranks = convert(tmp_path, "eagle", path, fields=EAGLE, tp=2)
    for n in range(2):
        net = f"eagle_nets.{n}.drafter."
        assert (rows(ranks, net + "fc.weight") == given["fc.weight"]).all()
        assert (rows(ranks, net + "fc.bias") == given["fc.bias"]).all()
        # gate_proj is TensorRT-LLM's fc, up_proj its gate.
        fc = rows(ranks, net + "layers.0.mlp.fc.weight")
        assert (fc == given["layers.0.mlp.gate_proj.weight"]).all()
        for rank in ranks:
            embedding = rank[net + "vocab_embedding.weight"]
            assert (embedding == given["embed_tokens.weight"]).all()
            assert (rank[f"eagle_nets.{n}.lm_head.weight"] == rank["lm_head.weight"]).all()
    q, k, v = (given[f"layers.0.self_attn.{x}_proj.weight"] for x in "qkv")
    for r, rank in enumerate(ranks):  # 4 heads of 16 rows, 2 KV heads: half of each to a rank
        expected = np.concatenate(
            [q[32 * r : 32 * r + 32], k[16 * r : 16 * r + 16], v[16 * r : 16 * r + 16]]
        )
        assert (rank["eagle_nets.0.drafter.layers.0.attention.qkv.weight"] == expected).all()


def test_a_head_without_fc_bias_gets_zeros(tmp_path):
    # Upstream fails on every head for Llama 3: none of them has this bias.
    path = heads.write_heads(
        tmp_path / "heads", heads.eagle(bias=False), heads.eagle_config(bias=False)
    )
    _, ranks = convert(tmp_path, "eagle", path, fields=EAGLE, tp=2)
    for rank in ranks:
        bias = rank["eagle_nets.1.drafter.fc.bias"]
        assert bias.shape == (HIDDEN // 2,)
        assert not bias.any()


def test_a_head_splits_by_its_own_kv_heads(tmp_path):
    # The target has 2 KV heads; this head has 4, so each of 4 ranks holds one whole head.
    given = heads.eagle(kv_heads=4)
    path = heads.write_heads(tmp_path / "heads", given, heads.eagle_config(num_key_value_heads=4))
    config, ranks = convert(tmp_path, "eagle", path, fields=EAGLE, tp=4)
    assert config["eagle_net_config"]["num_key_value_heads"] == 4
    assert config["num_key_value_heads"] == 2
    k = given["layers.0.self_attn.k_proj.weight"]
    for r, rank in enumerate(ranks):
        held = rank["eagle_nets.0.drafter.layers.0.attention.qkv.weight"]
        assert (held[16:32] == k[16 * r : 16 * r + 16]).all()


def test_a_head_without_an_embedding_gets_the_targets(tmp_path):
    given = heads.eagle()
    del given["embed_tokens.weight"]
    path = heads.write_heads(tmp_path / "heads", given, heads.eagle_config())
    _, (rank,) = convert(tmp_path, "eagle", path, fields=EAGLE)
    embedding = rank["eagle_nets.1.drafter.vocab_embedding.weight"]
    assert (embedding == rank["transformer.vocab_embedding.weight"]).all()


@pytest.mark.parametrize("spelling", ["lm_head", "lm_heads", "0"])
def test_redrafter_has_three_spellings_and_a_projection_where_sizes_differ(tmp_path, spelling):
    given = heads.redrafter(exit_dim=96, spelling=spelling)
    path = heads.write_heads(tmp_path / "heads", given, heads.redrafter_config(96))
    config, ranks = convert(tmp_path, "redrafter", path, tp=2)
    projection = "input_projs" if spelling == "lm_heads" else "input_proj"
    assert config["redrafter_exit_dim"] == 96
    assert (rows(ranks, "drafter.input_proj.weight") == given[f"{projection}.weight"]).all()
    assert (rows(ranks, "drafter.layers.1.linear.bias") == given[f"{spelling}.1.linear.bias"]).all()
    assert (rows(ranks, "drafter.lm_head.weight") == given[f"{spelling}.2.weight"]).all()
    assert (rows(ranks, "drafter.rnn_w.weight") == given["rnn_w.weight"]).all()
    assert "drafter.rnn_w.bias" not in ranks[0]


@pytest.mark.parametrize(
    ("family", "release", "architecture"),
    [
        ("llama", (0, 16), "ReDrafterForCausalLM"),
        ("llama", (1, 0), "ReDrafterForLLaMALM"),
        ("qwen2", (1, 2), "ReDrafterForQWenLM"),
    ],
)
def test_redrafters_architecture_goes_with_the_release(tmp_path, family, release, architecture):
    model = write_checkpoint(tmp_path / "model", family)
    path = heads.write_heads(tmp_path / "heads", heads.redrafter(), heads.redrafter_config())
    config, _ = convert(tmp_path, "redrafter", path, model, release=release)
    assert config["architecture"] == architecture


@pytest.mark.parametrize("old_format", [False, True], ids=["zip", "before PyTorch 1.6"])
def test_a_pt_file_gives_the_same_checkpoint_as_safetensors(tmp_path, old_format):
    import torch

    given = heads.medusa()
    safe = heads.write_heads(tmp_path / "safe", given, {}, "medusa_lm_head.safetensors")
    pickled = heads.write_heads(tmp_path / "pt", given, {}, "medusa_lm_head.pt")
    if old_format:
        tensors = {name: torch.from_numpy(value) for name, value in given.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.save(
                tensors,
                Path(pickled) / "medusa_lm_head.pt",
                _use_new_zipfile_serialization=False,
            )
    model = write_checkpoint(tmp_path / "model")
    first = convert(tmp_path / "a", "medusa", safe, model)
    second = convert(tmp_path / "b", "medusa", pickled, model)
    assert first[0] == second[0]
    for ours, theirs in zip(first[1], second[1], strict=True):
        assert all((ours[name] == theirs[name]).all() for name in ours)


def test_bfloat16_of_a_pt_file_is_read_bit_for_bit(tmp_path):
    import torch

    from toolkit.checkpoint.heads.torch_file import TorchFile

    values = torch.tensor([[1.0, -2.5], [3e38, 1e-40]], dtype=torch.bfloat16)
    torch.save({"a": values, "b": values.t()}, tmp_path / "x.pt")
    file = TorchFile(tmp_path / "x.pt")
    assert file.tensors["a"].dtype == "bfloat16"
    assert file.read("a").view(np.uint16).tolist() == values.view(torch.uint16).tolist()
    second = values.t().contiguous().view(torch.uint16)[1:2]
    assert file.read("b", slice(1, 2)).view(np.uint16).tolist() == second.tolist()
