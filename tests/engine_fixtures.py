"""Tiny real models for tests that need an engine: seeded, float32, built in well under a second.

    runtime = tiny_runtime(tmp_path_factory, drafter="draft_target", noise=0.02)
    runtime.loop().generate([...])

`tiny_runtime` gives a target and, for drafters that need one, a draft that is the target plus
noise: with `noise` 0.0 / 0.01 / 0.02 / 0.05 / 0.5 about 1.0 / 0.75 / 0.6 / 0.3 / 0.0 of the drafted
tokens are accepted (greedily, max_draft_len 4). The vocabulary is the 256 bytes, `<|im_start|>`,
`<|im_end|>` (end of text) and `<pad>`.
`tiny_built` gives the same as BuiltModels (directories on disk), for what runs in another process.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from toolkit.backends.runtime import Runtime, open_runtime
from toolkit.checkpoint.convert import convert
from toolkit.checkpoint.source import open_source
from toolkit.checkpoint.tokenizer import write_tokenizer
from toolkit.engine.built import BuiltModels
from toolkit.engine.cpu import build_cpu_engine
from toolkit.recipe.schema import EngineLimits, Recipe

SPECIAL = ["<|im_start|>", "<|im_end|>", "<pad>"]
VOCAB_SIZE = 256 + len(SPECIAL)
EOS_ID = 257
LIMITS = EngineLimits(max_batch_size=8, max_input_len=200, max_seq_len=256)
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eos_token_id": EOS_ID,
}
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_model(
    directory: Path, *, seed: int = 0, noise: float = 0.0, noise_seed: int = 1, **config: Any
) -> Path:
    """A Hugging Face directory of a random Llama; `noise` is relative to the weights' spread."""
    from safetensors.numpy import save_file

    config = {**TINY, **config}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    tensors = _tensors(config, np.random.default_rng(seed))
    other = np.random.default_rng(noise_seed)
    noisy = {
        name: (values + noise * values.std() * other.standard_normal(values.shape)).astype(
            np.float32
        )
        for name, values in tensors.items()
    }
    save_file(noisy, directory / "model.safetensors")
    write_tiny_tokenizer(directory)
    return directory


def _tensors(config: dict[str, Any], rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    hidden, inner, vocab = (config[k] for k in ("hidden_size", "intermediate_size", "vocab_size"))
    head = hidden // config["num_attention_heads"]
    kv = head * config["num_key_value_heads"]

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return (rng.standard_normal((rows, columns)) * 1.5 / columns**0.5).astype(np.float32)

    def norm() -> NDArray[np.float32]:
        return (1 + 0.1 * rng.standard_normal(hidden)).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": matrix(vocab, hidden),
        "lm_head.weight": matrix(vocab, hidden) * 2,
        "model.norm.weight": norm(),
    }
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        tensors |= {
            layer + "input_layernorm.weight": norm(),
            layer + "post_attention_layernorm.weight": norm(),
            layer + "self_attn.q_proj.weight": matrix(hidden, hidden),
            layer + "self_attn.k_proj.weight": matrix(kv, hidden),
            layer + "self_attn.v_proj.weight": matrix(kv, hidden),
            layer + "self_attn.o_proj.weight": matrix(hidden, hidden),
            layer + "mlp.gate_proj.weight": matrix(inner, hidden),
            layer + "mlp.up_proj.weight": matrix(inner, hidden),
            layer + "mlp.down_proj.weight": matrix(hidden, inner),
        }
    return tensors


def write_tiny_tokenizer(directory: Path) -> None:
    """One token per byte, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def tiny_recipe(directory: Path, *, drafter: str = "draft_target", **options: Any) -> Recipe:
    """A recipe whose checkpoints are `directory`/target and, if it needs one, /draft."""
    speculation: dict[str, Any] = {"drafter": drafter, **options}
    if drafter == "draft_target":
        speculation["draft"] = {"checkpoint": str(directory / "draft"), "dtype": "float32"}
    return Recipe.model_validate(
        {
            "name": "tiny",
            "backend": "cpu",
            "target": {"checkpoint": str(directory / "target"), "dtype": "float32"},
            "speculation": speculation,
            "engine": LIMITS.model_dump(),
        }
    )


def tiny_built(
    directory: Path, *, drafter: str = "draft_target", noise: float = 0.02, **options: Any
) -> BuiltModels:
    """Target and draft converted and built below `directory`."""
    write_tiny_model(directory / "target")
    write_tiny_model(directory / "draft", noise=noise)
    recipe = tiny_recipe(directory, drafter=drafter, **options)
    engines, tokenizers = {}, {}
    for role, spec in recipe.models().items():
        source = open_source(spec.checkpoint)
        checkpoint, engines[role] = directory / f"{role}-ckpt", directory / f"{role}-engine"
        tokenizers[role] = directory / f"{role}-tokenizer"
        convert(source, checkpoint, spec)
        engines[role].mkdir()
        build_cpu_engine(checkpoint, engines[role], recipe.engine)
        write_tokenizer(source, tokenizers[role])
    return BuiltModels(recipe=recipe, engines=engines, tokenizers=tokenizers)


def tiny_runtime(
    tmp_path_factory: pytest.TempPathFactory,
    *,
    drafter: str = "draft_target",
    noise: float = 0.02,
    **options: Any,  # of the drafter: max_draft_len=..., draft_length={...}
) -> Runtime:
    """Loaded models of `tiny_built`."""
    directory = tmp_path_factory.mktemp("tiny")
    return open_runtime(tiny_built(directory, drafter=drafter, noise=noise, **options))
