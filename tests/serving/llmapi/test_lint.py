"""Single breaks of a good repository, each of which lint finds; and upstream's own files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.serving.llmapi.deployments import EAGLE3, deployed, recipe
from toolkit.serving.lint import lint
from toolkit.serving.repository import write_repository

YAML, CONFIG = "tensorrt_llm/1/model.yaml", "tensorrt_llm/config.pbtxt"


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    """Two instances of two ranks, with a draft."""
    directory = tmp_path_factory.mktemp("llmapi lint")
    given = recipe(
        EAGLE3,
        target={"checkpoint": "org/target", "parallel": {"tp": 2}},
        serve={"pytorch": {"gpus": [[0, 1], [2, 3]]}},
    )
    return write_repository(
        deployed(given, directory, draft=True), directory / "repo", copy_engines=True
    )


def edit(repository: Path, file: str, pattern: str, to: str) -> None:
    path = repository / file
    text, times = re.subn(pattern, to, path.read_text(), count=1, flags=re.MULTILINE)
    assert times == 1, f"{pattern} is not in {file}"
    path.write_text(text)


BREAKS = {
    "no model.yaml": (YAML, None, r"1/model\.yaml: missing"),
    "not YAML": (YAML, (r"\Amodel|^model:", "model: ["), r"model\.yaml"),
    "a key twice": (YAML, ("^dtype:", "model: a\ndtype:"), r"twice|duplicate"),
    "a misspelt key": (
        YAML, ("^max_num_tokens|^max_seq_len", "max_seq_lenn"), r"did you mean 'max_seq_len'"
    ),
    "an unknown key": (YAML, ("^dtype:", "frobnicate: 1\ndtype:"), r"frobnicate: not a key"),
    "no model": (YAML, ("^model: .*", ""), r"no model: a directory or a hub id"),
    "tp is text": (YAML, ("^tensor_parallel_size: 2", "tensor_parallel_size: two"), r"'two', exp"),
    "tp is not the GPUs'": (
        YAML, ("^tensor_parallel_size: 2", "tensor_parallel_size: 4"), r"for an instance of 4 rank"
    ),
    "all of the memory": (
        YAML, ("free_gpu_memory_fraction: .*", "free_gpu_memory_fraction: 1.2"), r"below 1"
    ),
    "no section": (YAML, ("^triton_config", "tritonconfig"), r"no section triton_config"),
    "a misspelt setting": (YAML, ("decoupled: true", "decopled: true"), r"mean 'decoupled'"),
    "batches by Triton": (YAML, ("  max_batch_size: 0", "  max_batch_size: 8"), r"only 0 works"),
    "decoupled is text": (YAML, ("decoupled: true", "decoupled: 'yes'"), r"expected true or false"),
    "decoupled differs": (
        YAML, ("decoupled: true", "decoupled: false"), r"config\.pbtxt says true"
    ),
    "never asked for cancels": (
        YAML, ("cancellation_check_period_ms: 100", "cancellation_check_period_ms: 0"),
        r"expected 1 or more",
    ),
    "unknown decoding type": (
        YAML, ("decoding_type: Eagle", "decoding_type: Eagel"), r"decoding_type: .*Eagel"
    ),
    "a key that the type lacks": (
        YAML, ("  max_draft_len: 4", "  max_draft_len: 4\n  max_matching_ngram_size: 2"),
        r"max_matching_ngram_size: .*refuses it",
    ),
    "no draft length": (YAML, ("  max_draft_len: 4", "  max_draft_len: 0"), r"max_draft_len: 0"),
    "a draft elsewhere": (
        YAML, ("speculative_model_dir: .*", "speculative_model_dir: /nowhere"),
        r"no config\.json in /nowhere",
    ),
    "not decoupled": (CONFIG, ("decoupled: true", "decoupled: false"), r"says false"),
    "a batch size": (CONFIG, ('^backend', 'max_batch_size: 4\nbackend'), r"only 0 works"),
    "three instances": (CONFIG, ("count: 2", "count: 3"), r"GPUs for 2 instance\(s\), .* has 3"),
    "a GPU twice": (CONFIG, ("0,1;2,3", "0,1;1,2"), r"a GPU twice"),
    "no GPUs": (CONFIG, ("gpu_device_ids", "gpu_devise_ids"), r"did you mean 'gpu_device_ids'"),
    "a misspelt input": (
        CONFIG, ("sampling_param_seed", "sampling_param_sed"), r"mean 'sampling_param_seed'"
    ),
    "another type": (
        CONFIG, (r'(name: "total_draft_tokens"\s+data_type: )TYPE_INT32', r"\1TYPE_STRING"),
        r"STRING, expected INT32",
    ),
    "another code": (
        "tensorrt_llm/1/model.py", ("import TritonPythonModel", "import TritonPythonModel("),
        r"not Python",
    ),
}  # fmt: skip


def test_the_good_one_is_good(good):
    assert lint(good) == []


@pytest.mark.parametrize("name", BREAKS)
def test_a_single_break_is_found(good, tmp_path, name):
    broken = tmp_path / "repo"
    shutil.copytree(good, broken)
    file, change, said = BREAKS[name]
    if change is None:
        (broken / file).unlink()
    else:
        edit(broken, file, *change)
    found = [str(finding) for finding in lint(broken) if "since spectool wrote" not in str(finding)]
    assert any(re.search(said, line) for line in found), found


def test_findings_in_model_yaml_have_their_line(good, tmp_path):
    broken = tmp_path / "repo"
    shutil.copytree(good, broken)
    edit(broken, YAML, "  max_draft_len: 4", "  max_draft_len: 0")
    [finding] = [f for f in lint(broken) if "max_draft_len" in f.message]
    line = (broken / YAML).read_text().splitlines()[(finding.line or 0) - 1]
    assert line.strip() == "max_draft_len: 0"


UPSTREAM_YAML = """\
model: TinyLlama/TinyLlama-1.1B-Chat-v1.0
backend: "pytorch"
tensor_parallel_size: 1
pipeline_parallel_size: 1
triton_config:
  max_batch_size: 0
  decoupled: {decoupled}
"""
UPSTREAM_CONFIG = """\
name: "tensorrt_llm"
backend: "python"
instance_group [ { count: 1 kind: KIND_CPU } ]
input [ { name: "text_input" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] } ]
"""


@pytest.mark.parametrize(
    ("decoupled", "said"),
    [
        ("False", ["requests with streaming: true are refused"]),
        ("True", ["config.pbtxt says false"]),
    ],
)
def test_upstreams_own_repository_is_understood(tmp_path, decoupled, said):
    model = tmp_path / "tensorrt_llm"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(UPSTREAM_CONFIG)
    (model / "1/model.py").write_text("class TritonPythonModel: ...\n")
    (model / "1/model.yaml").write_text(UPSTREAM_YAML.format(decoupled=decoupled))
    found = lint(tmp_path)
    assert len(found) == len(said)
    for finding, text in zip(found, said, strict=True):
        assert text in finding.message


def test_a_relative_draft_is_only_for_our_model(tmp_path):
    model = tmp_path / "tensorrt_llm"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(UPSTREAM_CONFIG)
    (model / "1/model.py").write_text("class TritonPythonModel: ...\n")
    more = (
        "speculative_config: {decoding_type: Eagle, max_draft_len: 3, "
        "speculative_model_dir: ./draft}\n"
    )
    (model / "1/model.yaml").write_text(UPSTREAM_YAML.format(decoupled="False") + more)
    [error] = [finding for finding in lint(tmp_path) if finding.level == "error"]
    assert "write an absolute path" in error.message
    assert error.line == 8
