"""Built engines of every mode, and a made-up TensorRT-LLM that runs them."""

import json
import sys

import pytest

from tests.backends.tensorrt.fake_bindings import FakeBindings
from tests.commands.conftest import spectool
from tests.engine.trtllm.conftest import installation
from tests.engine.trtllm.golden_flags import GOLDEN
from tests.engine.trtllm.recipes import made
from tests.tiny import write_tokenizer
from toolkit.backends.runtime import open_runtime
from toolkit.engine.built import BuiltModels
from toolkit.engine.trtllm.command import engine_flags, release_of
from toolkit.engine.trtllm.limits import effective_limits

__all__ = ["installation", "spectool"]  # fixtures that are at home elsewhere

TEMPLATE = {
    "medusa": "engine016_medusa",
    "eagle": "engine016_eagle",
    "redrafter": "engine016_redrafter",
}


@pytest.fixture
def install(monkeypatch):
    """Put a release of TensorRT-LLM where imports find it."""

    def put(version="1.2.1"):
        bindings = FakeBindings(version)
        for name, module in bindings.modules().items():
            monkeypatch.setitem(sys.modules, name, module)
        return bindings

    return put


@pytest.fixture
def built(tmp_path):
    """Engine directories as trtllm-build would leave them for a recipe."""

    def write(drafter="draft_target", version="1.2.1", recipe=None, **changes):
        recipe = recipe or made(drafter, version)
        tokenizer = tmp_path / "tokenizer"
        tokenizer.mkdir(exist_ok=True)
        write_tokenizer(tokenizer)
        engines = {}
        for role in recipe.models():
            engines[role] = tmp_path / role
            _write_engine(engines[role], recipe, role, drafter, version, changes)
        return BuiltModels(recipe, engines, dict.fromkeys(engines, tokenizer))

    return write


def _write_engine(directory, recipe, role, drafter, version, changes):
    template = TEMPLATE.get(drafter, "engine016_draft") if role == "target" else "engine016_draft"
    config = json.loads((GOLDEN / f"{template}.json").read_text())["config"]
    pretrained = config["pretrained_config"]
    flags = engine_flags(recipe, role)
    limits = effective_limits(flags, release_of(recipe), pretrained)
    build = config["build_config"]
    build |= {
        "max_batch_size": limits.max_batch_size,
        "max_seq_len": limits.max_seq_len,
        "max_draft_len": limits.max_draft_len,
        "speculative_decoding_mode": limits.mode,
        "gather_generation_logits": bool(flags.get("gather_generation_logits")),
    }
    build["plugin_config"] |= {"use_paged_context_fmha": True, "paged_kv_cache": True}
    build["plugin_config"] |= changes.get(role, {})
    directory.mkdir()
    (directory / "rank0.engine").write_bytes(b"ftrt")
    (directory / "config.json").write_text(json.dumps({**config, "version": version}))


@pytest.fixture
def opened(built, install):
    """A runtime on a made-up machine; `.bindings` is what it talks to."""

    def run(drafter="draft_target", version="1.2.1", **changes):
        bindings = install(version)
        runtime = open_runtime(built(drafter, version, **changes))
        return runtime, bindings

    return run
