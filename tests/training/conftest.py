"""A tiny target of eight layers, and data that its engine generated: made once.

Its layers say little beside its embedding, so that a token mostly follows from the one before it:
something that a head can learn in seconds, where an ordinary random model is noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.engine_fixtures import EOS_ID, VOCAB_SIZE, write_byte_tokenizer
from tests.tiny import hf_config, hf_tensors, write_checkpoint
from toolkit.backends.cpu.model import CpuModel
from toolkit.checkpoint.convert import convert
from toolkit.checkpoint.source import open_source
from toolkit.checkpoint.tokenizer import Tokenizer, load_tokenizer, write_tokenizer
from toolkit.engine.cpu import build_cpu_engine
from toolkit.engine.directory import read_engine
from toolkit.recipe.schema import EngineLimits, ModelSpec
from toolkit.training.batches import TrainingData
from toolkit.training.generate import DataPlan, Generator
from toolkit.training.prompts import load_prompt_book
from toolkit.training.target import Target, read_target

LIMITS = EngineLimits(max_batch_size=16, max_input_len=100, max_seq_len=160)
LAYERS = 8
PLAN = DataPlan(split="train", sequences=16, max_tokens=40, max_prompt_tokens=100)


@dataclass(frozen=True)
class TinyTarget:
    """What training starts from."""

    checkpoint_dir: Path
    tokenizer: Tokenizer
    model: CpuModel


def captured(layers: int) -> tuple[int, ...]:
    return (1, layers // 2 - 1, layers - 4, layers)


def write_prompts(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "topics.txt").write_text("\n".join(f"topic {i}" for i in range(40)))
    (directory / "heldout_topics.txt").write_text("held out a\nheld out b\nheld out c")
    (directory / "forms.txt").write_text("# chat 1\nTell {topic}.\nWhat is {topic}?\n")
    return directory


def write_model(directory: Path) -> Path:
    words = {"vocab_size": VOCAB_SIZE, "eos_token_id": EOS_ID, "num_hidden_layers": LAYERS}
    tensors = hf_tensors(hf_config("llama", **words), scale=0.3)
    quiet = {name: t * 0.2 if "_proj" in name else t for name, t in tensors.items()}
    write_checkpoint(directory, "llama", tensors=quiet, dtype="float32", **words)
    write_byte_tokenizer(directory)
    return directory


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """What is tiny is slower on two."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyTarget:
    root = tmp_path_factory.mktemp("training")
    source = open_source(str(write_model(root / "hf")))
    spec = ModelSpec.model_validate({"checkpoint": str(root / "hf"), "dtype": "float32"})
    convert(source, root / "checkpoint", spec)
    (root / "engine").mkdir()
    build_cpu_engine(root / "checkpoint", root / "engine", LIMITS, captured)
    write_tokenizer(source, root / "tokenizer")
    model = CpuModel(read_engine(root / "engine"), threads=1)
    return TinyTarget(root / "checkpoint", load_tokenizer(root / "tokenizer"), model)


@pytest.fixture(scope="session")
def data_dir(tiny: TinyTarget, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four shards to train on, one held out."""
    root = tmp_path_factory.mktemp("data")
    book = load_prompt_book(write_prompts(root / "prompts"))
    for split, shards in (("train", 4), ("heldout", 1)):
        plan = DataPlan(**{**vars(PLAN), "split": split})
        Generator(tiny.model, tiny.tokenizer, book, plan).fill(root / "data", range(shards))
    return root / "data"


@pytest.fixture(scope="module")
def target(tiny: TinyTarget) -> Target:
    return read_target(tiny.checkpoint_dir)


@pytest.fixture(scope="module")
def splits(data_dir: Path) -> tuple[TrainingData, TrainingData]:
    return TrainingData(data_dir, "train"), TrainingData(data_dir, "heldout")
