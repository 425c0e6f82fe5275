"""An engine directory that is damaged, foreign or edited is refused in one clear message."""

import json
import shutil

import pytest

from toolkit.backends.cpu.backend import CpuBackend
from toolkit.engine.directory import read_engine
from toolkit.errors import InputError


@pytest.fixture
def engine(build, tmp_path):
    """A private copy that a test may damage."""
    return shutil.copytree(build().engine, tmp_path / "engine")


def edit(engine, section, **changes):
    path = engine / "config.json"
    config = json.loads(path.read_text())
    config[section] |= changes
    path.write_text(json.dumps(config))


def refused(engine, message):
    with pytest.raises(InputError, match=message):
        CpuBackend().load(engine)


def test_what_was_built_reads_back(build):
    engine = read_engine(build().engine)
    assert (engine.max_batch_size, engine.max_input_len, engine.max_seq_len) == (4, 200, 256)
    assert engine.max_num_tokens == 4 * 256  # never more than all sequences hold
    assert engine.settings.num_layers == 2


def test_an_empty_directory_is_not_an_engine(tmp_path):
    refused(tmp_path, "no config.json.*spectool build")


def test_a_config_that_is_not_json(engine):
    (engine / "config.json").write_text("{")
    refused(engine, "config.json: not readable")


def test_a_config_that_is_a_list(engine):
    (engine / "config.json").write_text("[]")
    refused(engine, "expected a JSON object, got list")


def test_a_checkpoint_is_not_an_engine(build):
    refused(build().checkpoint, "not an engine's config")


def test_an_engine_of_tensorrt_is_named_as_such(engine):
    config = json.loads((engine / "config.json").read_text())
    del config["cpu"]
    (engine / "config.json").write_text(json.dumps(config))
    refused(engine, "not an engine of backend cpu")


def test_missing_and_truncated_files_are_reported_together(engine):
    (engine / "model.xml").unlink()
    with (engine / "model.bin").open("r+b") as file:
        file.truncate(1000)
    refused(engine, r"(?s)2 problem.*model.xml: missing.*model.bin: 1000 bytes, expected \d+")


def test_an_engine_of_another_version(engine):
    edit(engine, "cpu", engine_version=0)
    refused(engine, "engine version 0, this spectool reads")


@pytest.mark.parametrize("value", [0, -4, "8", None, True])
def test_limits_must_be_positive_numbers(engine, value):
    edit(engine, "build_config", max_batch_size=value)
    refused(engine, "build_config.max_batch_size")


@pytest.mark.parametrize(
    ("section", "change"),
    [
        ("pretrained_config", {"num_hidden_layers": 3}),
        ("pretrained_config", {"vocab_size": 251}),
        ("pretrained_config", {"num_key_value_heads": 4}),
        ("build_config", {"max_seq_len": 512}),
    ],
)
def test_a_config_that_lies_about_the_graph(engine, section, change):
    edit(engine, section, **change)
    refused(engine, "not the one that the graph was built with")


def test_the_graph_of_another_engine(engine, build):
    other = build("qwen2").engine
    for name in ("model.xml", "model.bin"):
        shutil.copyfile(other / name, engine / name)
    sizes = {name: (other / name).stat().st_size for name in ("model.xml", "model.bin")}
    edit(engine, "cpu", files=sizes)
    refused(engine, "not the one that the graph was built with")


def test_a_graph_of_the_right_size_full_of_nonsense(engine):
    size = (engine / "model.xml").stat().st_size
    (engine / "model.xml").write_bytes(b"x" * size)
    refused(engine, "not a graph that OpenVINO can read")
