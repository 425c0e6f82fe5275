"""Both layouts of one tiny recipe on real servers, each started once, and what they should say.

The tokenizer has one character per token, so equal texts are equal tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engine_fixtures import SPECIAL, tiny_built
from tests.serving.conftest import with_layout
from tests.serving.test_ports import free_ports
from toolkit.backends.runtime import Runtime, open_runtime
from toolkit.engine.built import BuiltModels
from toolkit.serving.client import Ask
from toolkit.serving.repository import repository_manifest, write_repository
from toolkit.serving.server import Address, TritonServer
from toolkit.speculation.grammar import Guide
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.request import Output, Request

EOS = "<|im_end|>"


@dataclass(frozen=True)
class Deployment:
    """A running server and the model that clients ask."""

    address: Address
    model: str
    repository: Path
    pid: int


def write_character_tokenizer(directory: Path) -> None:
    """Token i is ASCII where that prints, else a Hangul syllable of its own."""
    from tokenizers import Tokenizer, decoders, models

    vocab = {chr(i) if 32 <= i < 127 else chr(0xAC00 + i): i for i in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOS}))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltModels:
    made = tiny_built(tmp_path_factory.mktemp("built models"), max_draft_len=4)
    for directory in made.tokenizers.values():
        write_character_tokenizer(directory)
    return made


@pytest.fixture(scope="session")
def runtime(built: BuiltModels) -> Runtime:
    return open_runtime(built)


def serve(built: BuiltModels, layout: str, directory: Path) -> Iterator[Deployment]:
    repository = write_repository(with_layout(built, layout), directory / "model repository")
    manifest = repository_manifest(repository)
    assert manifest is not None
    http, grpc, metrics = free_ports(3)
    address = Address("127.0.0.1", http, grpc, metrics)
    with TritonServer(repository, list(manifest["models"]), address, timeout_s=180) as server:
        yield Deployment(address, manifest["entry"], repository, server.pid)


@pytest.fixture(scope="session")
def bls(built: BuiltModels, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    yield from serve(built, "bls", tmp_path_factory.mktemp("bls"))


@pytest.fixture(scope="session")
def inprocess(built: BuiltModels, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    yield from serve(built, "inprocess", tmp_path_factory.mktemp("inprocess"))


@pytest.fixture(params=["bls", "inprocess"])
def deployment(request: pytest.FixtureRequest) -> Deployment:
    """Each layout in turn."""
    found: Deployment = request.getfixturevalue(request.param)
    return found


def loop_output(runtime: Runtime, ask: Ask) -> tuple[str, Output]:
    """What the runtime's own loop makes of a request, and its text."""
    guide = None
    if ask.guided_decoding_guide_type:
        guide = Guide(ask.guided_decoding_guide_type, ask.guided_decoding_guide or "")
    request = Request(
        prompt=tuple(runtime.tokenizer.encode(ask.text_input)),
        max_tokens=ask.max_tokens,
        sampling=SamplingParams(
            ask.temperature or 0.0, ask.top_k or 0, ask.top_p or 1.0, ask.seed or 0
        ),
        stop_tokens=frozenset() if ask.end_id == -1 else runtime.tokenizer.eos_ids,
        stop_strings=ask.stop_words or (),
        draft_len=ask.num_draft_tokens,
        grammar=runtime.grammar(guide),
    )
    [output] = runtime.loop().generate([request])
    text = runtime.tokenizer.decode(output.tokens)
    cuts = [text.find(word) for word in ask.stop_words or () if word in text]
    return text[: min(cuts)] if cuts else text, output
