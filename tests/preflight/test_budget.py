"""Memory of one GPU, by hand: what engines take, how pools are shared, how many sequences fit."""

from __future__ import annotations

import json

import pytest

from tests import tiny_heads as heads
from tests.preflight.lab import Lab
from toolkit.checkpoint.safetensors_file import DTYPES, header_bytes
from toolkit.errors import InputError
from toolkit.preflight.budget import (
    GIB,
    Sizes,
    activation_bytes,
    kv_bytes_per_token,
    logits_bytes,
    make_budget,
)
from toolkit.preflight.gather import gather
from toolkit.preflight.gpu_memory import MEMORY_MIB, memory_mib
from toolkit.preflight.p8_memory import budget_of
from toolkit.preflight.report import Report
from toolkit.recipe.schema import Recipe
from toolkit.store import Store

LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_size": 128,
    "vocab_size": 128256,
    "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
}


def over(tp: int, **changes):
    mapping = {"world_size": tp, "tp_size": tp, "pp_size": 1}
    return {**LLAMA_8B, "mapping": mapping, **changes}


def test_kv_of_a_token():
    # 2 (K and V) x 32 layers x 8 heads x 128 x 2 bytes
    assert kv_bytes_per_token(LLAMA_8B, 2) == 131_072
    assert kv_bytes_per_token(over(4), 2) == 32_768
    # 8 heads over 16 ranks: each head on two of them, so one head a rank
    assert kv_bytes_per_token(over(16), 2) == 16_384
    assert kv_bytes_per_token(LLAMA_8B, 1) == 65_536


def test_draft_layers_inside_the_engine_have_kv_too():
    # One EAGLE layer: 2 x 1 x 8 x 128 x 2 = 4096 bytes more, however deep the tree is.
    net = {**LLAMA_8B, "num_hidden_layers": 1}
    eagle = LLAMA_8B | {"num_eagle_layers": 4, "eagle_net_config": net}
    assert kv_bytes_per_token(eagle, 2) == 131_072 + 4_096


def test_logits_are_there_for_every_draft_token_and_one_more():
    # 8 sequences x (10 + 1) tokens x 128256 x 4 bytes
    assert logits_bytes(LLAMA_8B, 8, 10) == 45_146_112
    assert logits_bytes(LLAMA_8B, 8, 0) == 4_104_192


def test_activations_are_split_where_the_mlp_is():
    # 1000 tokens x (2 x 14336 + 3 x 4096) x 2 bytes
    assert activation_bytes(LLAMA_8B, 1000, 2) == 81_920_000
    # over 4 ranks: 2 x 3584 + 3 x 4096
    assert activation_bytes(over(4), 1000, 2) == 38_912_000


def engines(batch: int):
    """Two engines that take 10 and 2 GiB, whatever the batch; 1000 tokens a sequence."""
    return [
        Sizes("target", 10 * GIB, 0, 0, GIB // 1000, 1000),
        Sizes("draft", 2 * GIB, 0, 0, GIB // 5000, 1000),
    ]


def test_pools_hold_the_same_number_of_sequences():
    # 33 - 1 reserved - 12 loaded = 20 free, 0.9 of it for KV = 18: 15 and 3 by token size (5 : 1).
    budget = make_budget("made up", 33 * GIB, engines, 4, 0.9)
    assert budget.free == 20 * GIB
    target, draft = budget.lines
    assert target.kv_pool == pytest.approx(15 * GIB, rel=1e-4)
    assert draft.kv_pool == pytest.approx(3 * GIB, rel=1e-4)
    assert abs(target.kv_tokens - draft.kv_tokens) <= 1


def test_a_fraction_is_of_what_is_free_when_the_engine_loads():
    budget = make_budget("made up", 33 * GIB, engines, 4, 0.9)
    target, draft = budget.lines
    # The target sees 33 - 1 - 10 = 22 and takes 15; the draft sees 22 - 15 - 2 = 5 and takes 3.
    assert target.fraction == pytest.approx(15 / 22, abs=1e-3)
    assert draft.fraction == pytest.approx(3 / 5, abs=1e-3)


def test_the_largest_batch_is_where_all_sequences_fit_at_full_length():
    # A sequence takes 1 + 0.2 GiB: 18 / 1.2 = 15.
    assert make_budget("made up", 33 * GIB, engines, 4, 0.9).largest_batch == 15
    assert make_budget("made up", 33 * GIB, engines, 64, 0.9).largest_batch == 15


def test_nothing_fits_where_the_engines_alone_do_not():
    budget = make_budget("made up", 12 * GIB, engines, 4, 0.9)
    assert budget.free < 0
    assert budget.largest_batch == 0
    assert [line.kv_pool for line in budget.lines] == [0, 0]


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("h100", 81_559),
        ("H200", 143_771),
        ("a100-40", 40_960),
        ("A100 80GB", 81_920),
        ("l40s", 46_068),
        ("B200", 183_359),
        ("rtx 4090", 24_564),
    ],
)
def test_gpus_by_the_names_people_use(name, mib):
    assert memory_mib(name) == mib


def test_an_unknown_gpu_names_the_known_ones():
    with pytest.raises(InputError, match=r"did you mean 'H100'.*--gpu-memory"):
        memory_mib("h1000")


def test_every_gpu_has_an_architecture():
    from toolkit.engine.trtllm.gpus import architecture

    for name in MEMORY_MIB:
        assert architecture(name.partition("-")[0]), name


def header_only(lab: Lab) -> None:
    """Llama-3.1-8B without its weights: a header, and a hole as large as they are."""
    hidden, inter, kv, vocab = 4096, 14336, 1024, 128256
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "lm_head.weight": (vocab, hidden)}
    for i in range(32):
        shapes |= {
            f"model.layers.{i}.self_attn.q_proj.weight": (hidden, hidden),
            f"model.layers.{i}.self_attn.k_proj.weight": (kv, hidden),
            f"model.layers.{i}.self_attn.v_proj.weight": (kv, hidden),
            f"model.layers.{i}.self_attn.o_proj.weight": (hidden, hidden),
            f"model.layers.{i}.mlp.gate_proj.weight": (inter, hidden),
            f"model.layers.{i}.mlp.up_proj.weight": (inter, hidden),
            f"model.layers.{i}.mlp.down_proj.weight": (hidden, inter),
            f"model.layers.{i}.input_layernorm.weight": (hidden,),
            f"model.layers.{i}.post_attention_layernorm.weight": (hidden,),
        }
    shapes["model.norm.weight"] = (hidden,)
    header = header_bytes({name: (DTYPES["BF16"], shape) for name, shape in shapes.items()})
    lab.model("target")
    path = lab.folder / "target"
    config = json.loads((path / "config.json").read_text())
    config |= {
        "hidden_size": hidden,
        "intermediate_size": inter,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": vocab,
        "max_position_embeddings": 131072,
    }
    (path / "config.json").write_text(json.dumps(config))
    with (path / "model.safetensors").open("wb") as file:
        file.write(header)
        file.truncate(len(header) + 16_060_522_496)


def test_an_8b_model_on_an_h100(spectool, lab):
    # 8,030,261,248 parameters x 2 bytes = 14.957 GiB.
    header_only(lab)
    lab.set("target.dtype", "bfloat16")
    lab.set("engine", {"max_batch_size": 8, "max_input_len": 4096, "max_seq_len": 8192})
    ran = spectool("check", lab.path(), "--json", "--gpu", "h100")
    assert ran.code == 0
    memory = json.loads(ran.out)["memory"]
    (engine,) = memory["engines"]
    assert engine["weights_bytes"] == 16_060_522_496
    assert engine["kv_bytes_per_token"] == 131_072
    # 79.6 - 1 - 15 - about 0.7 of buffers = 63 GiB, 0.9 of it; a sequence of 8192 + 10 tokens in
    # blocks of 32 is 8224 x 131072 bytes = 1.004 GiB.
    assert 53 <= memory["largest_batch_that_fits"] <= 57
    lab.set("target.quantization", "w8a16")
    smaller = json.loads(spectool("check", lab.path(), "--json", "--gpu", "h100").out)["memory"]
    # Matrices of the layers take half; embedding, lm_head and norms do not.
    half = 32 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096)
    assert smaller["engines"][0]["weights_bytes"] == 16_060_522_496 - half


def test_the_budget_is_a_table_in_load_order(spectool, lab):
    ran = spectool("check", lab.draft().path(), "--gpu", "L40S")
    assert ran.code == 0
    lines = ran.out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("memory of one L40S"))
    assert [lines[start + i].split()[0] for i in (2, 3)] == ["target", "draft"]
    assert lines[start + 4].startswith("largest batch that fits at full length: ")


def test_a_smaller_batch_than_the_recipe_asks_for_is_a_note(spectool, lab):
    lab.set("engine.max_batch_size", 4000).set("engine.max_seq_len", 100_000)
    lab.set("engine.max_num_tokens", 4096)
    ran = spectool("check", lab.path(), "--gpu-memory", "8")
    assert ran.code == 0
    assert "engine.max_batch_size is 4000; more wait for free KV blocks" in ran.out


@pytest.mark.parametrize(("gpu", "budgeted"), [("L40S", True), ("sm_90", False), (None, False)])
def test_the_recipes_own_gpu_is_budgeted_where_its_memory_is_known(spectool, lab, gpu, budgeted):
    ran = spectool("check", lab.set("tensorrt.gpu", gpu).path(), "--json")
    assert ran.code == 0
    assert (json.loads(ran.out)["memory"] is not None) == budgeted


def test_heads_that_are_loaded_as_they_are_have_a_line_of_their_own(lab):
    lab.model("target")
    given = heads.eagle3()
    heads.write_heads(lab.folder / "heads", given, heads.eagle3_config())
    recipe = Recipe.model_validate(
        {
            "name": "lab",
            "backend": "pytorch",
            "target": {"checkpoint": str(lab.folder / "target"), "dtype": "float16"},
            "speculation": {
                "drafter": "eagle3",
                "heads": {"checkpoint": str(lab.folder / "heads")},
                "max_draft_len": 3,
            },
        }
    )
    facts = gather(recipe, Store(lab.folder / "store"), Report(), gpu_memory=8)
    budget = budget_of(facts)
    assert budget
    assert [line.sizes.role for line in budget.lines] == ["target", "heads"]
    line = budget.lines[1].sizes
    assert line.weights == sum(tensor.nbytes for tensor in given.values())
    assert line.kv_per_token == 2 * 1 * 2 * 16 * 2  # K and V, 1 layer, 2 heads of 16, 2 bytes
