"""Tiny drafting heads at work: a random target, and a random head that may say little.

A random head over the target's whole vocabulary would never be right. Here its draft vocabulary is
the few tokens that the target says most after the tests' prompts, so that chance alone lets some
drafts stand; d2t is then far from the identity, too.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests import tiny_heads
from tests.engine_fixtures import LIMITS, VOCAB_SIZE, write_tiny_model
from tests.tiny import HIDDEN, INTERMEDIATE
from toolkit.backends.runtime import Runtime, open_runtime
from toolkit.checkpoint.convert import convert
from toolkit.checkpoint.source import open_source
from toolkit.checkpoint.tokenizer import write_tokenizer
from toolkit.engine.built import BuiltModels
from toolkit.engine.cpu import build_cpu_engine, captured_for
from toolkit.engine.heads.build import build_head_engine
from toolkit.recipe.schema import Recipe
from toolkit.speculation.loop import Request

SAID, DRAFT_VOCAB = 8, 6
LAYERS = 6


def repeated_phrases(count: int = 30) -> list[tuple[int, ...]]:
    """Prompts of 2 to 90 tokens, each a phrase said again and again."""
    rng = np.random.default_rng(0)
    phrases = [rng.integers(0, 256, rng.integers(2, 30)).tolist() for _ in range(count)]
    return [tuple((phrase * 3)[: len(phrase) * int(rng.integers(1, 4))]) for phrase in phrases]


def tiny_head_runtime(
    tmp_path_factory: pytest.TempPathFactory, drafter: str, **options: Any
) -> Runtime:
    """Target and head built below a new directory, and loaded."""
    directory = tmp_path_factory.mktemp("heads")
    return open_runtime(tiny_head_built(directory, drafter, **options), threads=1)


def tiny_head_built(directory: Path, drafter: str, **options: Any) -> BuiltModels:
    """The same as directories on disk."""
    return _built(directory / "built", tiny_head_files(directory, drafter, **options))


def tiny_head_files(directory: Path, drafter: str, **options: Any) -> Recipe:
    """A recipe whose files are there: `directory`/target and `directory`/head."""
    _write_target(directory / "target")
    plain = _built(directory / "plain", _recipe(directory, "none", {}))
    _write_head(directory / "head", drafter, _frequent(open_runtime(plain)))
    options = {"heads": {"checkpoint": str(directory / "head")}, **options}
    return _recipe(directory, drafter, options)


def _write_target(directory: Path) -> None:
    """Of all tokens it ever says only a few: the others' rows of lm_head are zero."""
    write_tiny_model(directory, num_hidden_layers=LAYERS)
    [file] = directory.glob("*.safetensors")
    tensors = load_file(file)
    said = np.arange(3, VOCAB_SIZE, VOCAB_SIZE // SAID)[:SAID]
    tensors["lm_head.weight"][~np.isin(np.arange(VOCAB_SIZE), said)] = 0.0
    save_file(tensors, file)


def _recipe(directory: Path, drafter: str, options: dict[str, Any]) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "tiny",
            "backend": "cpu",
            "target": {"checkpoint": str(directory / "target"), "dtype": "float32"},
            "speculation": {"drafter": drafter, **options},
            "engine": LIMITS.model_dump(),
        }
    )


def _built(directory: Path, recipe: Recipe) -> BuiltModels:
    source = open_source(recipe.target.checkpoint)
    engines = {"target": directory / "target", "heads": directory / "heads"}
    convert(source, directory / "checkpoint", recipe.target)
    for path in engines.values():
        path.mkdir(parents=True)
    build_cpu_engine(
        directory / "checkpoint", engines["target"], recipe.engine, captured_for(recipe, "target")
    )
    if recipe.speculation.drafter == "none":
        del engines["heads"]
    else:
        build_head_engine(directory / "checkpoint", engines["heads"], recipe)
    write_tokenizer(source, directory / "tokenizer")
    return BuiltModels(recipe, engines, {"target": directory / "tokenizer"})


def _frequent(runtime: Runtime) -> np.ndarray[Any, Any]:
    """The tokens that the target says most, ascending."""
    requests = [Request(prompt, 32) for prompt in repeated_phrases()]
    counts = Counter(t for output in runtime.loop().generate(requests) for t in output.tokens)
    return np.array(sorted(token for token, _ in counts.most_common(DRAFT_VOCAB)))


def _write_head(directory: Path, drafter: str, ids: np.ndarray[Any, Any]) -> None:
    d2t = ids - np.arange(len(ids))
    if drafter == "medusa":
        tensors = tiny_heads.medusa(heads=3)
        tensors = {name: t for name, t in tensors.items() if not name.endswith(".1.weight")}
        file = "medusa_lm_head.safetensors"
        tiny_heads.write_heads(directory, {**tensors, "d2t": d2t}, {}, file)
    elif drafter == "eagle3":
        tensors = {**tiny_heads.eagle3(draft_vocab=len(ids)), "d2t": d2t}
        tensors["t2d"] = np.isin(np.arange(VOCAB_SIZE), ids)
        tensors["lm_head.weight"] *= 40  # sure of itself now and then
        config = tiny_heads.eagle3_config(len(ids), vocab_size=VOCAB_SIZE)
        tiny_heads.write_heads(directory, tensors, config)
    else:
        # It takes the embedding as it is: right wherever the target's own layers change little.
        tensors = tiny_heads.eagle(bias=False)
        tensors = {name: np.zeros_like(t) for name, t in tensors.items()}
        tensors["fc.weight"][:, :HIDDEN] = 20 * np.eye(HIDDEN)
        del tensors["embed_tokens.weight"]
        config = tiny_heads.eagle_config(bias=False, vocab_size=VOCAB_SIZE)
        assert config["intermediate_size"] == INTERMEDIATE
        tiny_heads.write_heads(directory, tensors, config)
