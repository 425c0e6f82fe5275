"""Directories like those that trtllm-build writes, with nothing in the engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.engine_fixtures import write_byte_tokenizer
from toolkit.engine.built import BuiltModels
from toolkit.engine.trtllm.command import engine_flags, release_of
from toolkit.engine.trtllm.limits import effective_limits
from toolkit.recipe.schema import Recipe
from toolkit.registry import DRAFTERS

LAYERS = {"target": 8, "draft": 2}


def write_engine(directory: Path, recipe: Recipe, role: str, **pretrained: Any) -> Path:
    """The engine of `role`, as large as the recipe says."""
    parallel, options = recipe.models()[role].parallel, recipe.speculation
    ranks = parallel.tp * parallel.pp
    config: dict[str, Any] = {
        "architecture": "LlamaForCausalLM",
        "dtype": "float16",
        "logits_dtype": "float32",
        "vocab_size": 1000,
        "num_hidden_layers": LAYERS[role],
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_size": 64,
        "mapping": {"world_size": ranks, "tp_size": parallel.tp, "pp_size": parallel.pp},
        **pretrained,
    }
    if role == "target":
        fields = DRAFTERS[options.drafter].checkpoint_fields(options)
        config |= {key: value for key, value in fields.items() if value is not None}
    limits = effective_limits(engine_flags(recipe, role), release_of(recipe), config)
    build = {
        "max_batch_size": limits.max_batch_size,
        "max_input_len": limits.max_input_len,
        "max_seq_len": limits.max_seq_len,
        "max_num_tokens": limits.max_num_tokens,
        "max_beam_width": limits.max_beam_width,
        "max_draft_len": limits.max_draft_len,
        "speculative_decoding_mode": limits.mode,
        "plugin_config": {
            "use_paged_context_fmha": True,
            "paged_kv_cache": True,
            "tokens_per_block": 32,
        },
    }
    directory.mkdir(parents=True)
    document = {
        "version": f"{recipe.tensorrt_llm}",
        "pretrained_config": config,
        "build_config": build,
    }
    (directory / "config.json").write_text(json.dumps(document))
    for rank in range(ranks):
        (directory / f"rank{rank}.engine").write_bytes(b"ftrt")
    return directory


def trt_built(directory: Path, recipe: Recipe) -> BuiltModels:
    """Engines and tokenizers of every role below `directory`."""
    engines, tokenizers = {}, {}
    for role in recipe.models():
        engines[role] = write_engine(directory / f"{role}-engine", recipe, role)
        tokenizers[role] = directory / f"{role}-tokenizer"
        tokenizers[role].mkdir()
        write_byte_tokenizer(tokenizers[role])
    return BuiltModels(recipe, engines, tokenizers)
