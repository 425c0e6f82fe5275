"""Tiny real models for tests that need an engine: seeded, float32, built in well under a second.

    runtime = tiny_runtime(tmp_path_factory, drafter="draft_target", noise=0.02)
    runtime.loop().generate([...])

`tiny_runtime` gives a target and, for drafters that need one, a draft that is the target plus
noise: with `noise` 0.0 / 0.01 / 0.05 / 0.1 / 0.5 about 1.0 / 0.77 / 0.36 / 0.16 / 0.01 of the
drafted tokens are accepted (greedily, max_draft_len 4). The vocabulary is the 256 bytes,
`<|im_start|>`, `<|im_end|>` (end of text) and `<pad>`.
`tiny_built` gives the same as BuiltModels (directories on disk), for what runs in another process.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import hf_config, hf_tensors, noisy, write_checkpoint
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
SPREAD = 0.2  # of the weights: enough to be far from uniform, little enough for a stable float32
LIMITS = EngineLimits(max_batch_size=8, max_input_len=200, max_seq_len=256)
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_model(
    directory: Path, *, noise: float = 0.0, dtype: str = "float32", **config: Any
) -> Path:
    """A Hugging Face directory of a random Llama; `noise` is relative to the weights' spread."""
    config = {"vocab_size": VOCAB_SIZE, "eos_token_id": EOS_ID, **config}
    tensors = hf_tensors(hf_config("llama", **config), scale=SPREAD)
    write_checkpoint(directory, "llama", tensors=noisy(tensors, noise), dtype=dtype, **config)
    write_byte_tokenizer(directory)
    return directory


def write_byte_tokenizer(directory: Path) -> None:
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
    # More threads than one only wait for each other on a model of this size.
    return open_runtime(tiny_built(directory, drafter=drafter, noise=noise, **options), threads=1)
