"""Lint finds every single way in which a good repository is broken here."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.serving.mutations import (
    BLS,
    ENSEMBLE,
    LLM,
    Mutation,
    drop_input,
    edit,
    parameter,
    remap,
    remove,
    rename,
    replace,
    speculation,
    tensor,
    write,
)
from toolkit.errors import InputError
from toolkit.serving.lint import lint, raise_errors

# name -> (the mutation, what must be said about it)
MUTATIONS: dict[str, tuple[Mutation, str]] = {
    "unknown field": (replace(LLM, "backend:", "bakend:"), 'no field named "bakend"'),
    "unknown dtype": (replace(LLM, "TYPE_INT32", "TYPE_INT33"), "TYPE_INT33"),
    "unbalanced braces": (replace(LLM, "input {", "input {{"), "Expected"),
    "placeholder as number": (
        replace(LLM, "max_batch_size: 8", "max_batch_size: ${triton_max_batch_size}"),
        "left over ${triton_max_batch_size}",
    ),
    "placeholder in quotes": (
        parameter(LLM, "gpt_model_path", "${engine_dir}"),
        "left over ${engine_dir}",
    ),
    "two schedulers": (
        replace(LLM, "instance_group", "dynamic_batching { } sequence_batching { } instance_group"),
        "sequence_batching",
    ),
    "not UTF-8": (write(f"{LLM}/config.pbtxt", b"name: \xff\xfe"), "not readable"),
    "no config": (remove(f"{LLM}/config.pbtxt"), "missing; every model directory needs one"),
    "another name": (
        replace(LLM, 'name: "tensorrt_llm"', 'name: "tensorrt"'),
        "must equal its directory's",
    ),
    "renamed directory": (
        rename(LLM, "target"),
        "must equal its directory's",
    ),
    "no version directory": (remove(f"{LLM}/1"), "no version directory"),
    "no model.py": (remove(f"{LLM}/1/model.py"), "missing; backend python runs it"),
    "model.py with a syntax error": (
        write(f"{LLM}/1/model.py", "def broken(:\n"),
        "not Python: invalid syntax",
    ),
    "no backend": (edit(LLM, lambda c: c.ClearField("backend")), "no backend"),
    "misspelt backend": (
        replace(LLM, 'backend: "python"', 'backend: "phyton"'),
        "did you mean 'python'",
    ),
    "negative batch size": (
        edit(LLM, lambda c: setattr(c, "max_batch_size", -1)),
        "max_batch_size: -1",
    ),
    "dims 0": (
        edit(LLM, lambda c: tensor(c, "input_ids").dims.__setitem__(0, 0)),
        "each is 1 or more, or -1",
    ),
    "no dims": (edit(LLM, lambda c: tensor(c, "input_ids").ClearField("dims")), "no dims"),
    "no dtype": (
        edit(LLM, lambda c: tensor(c, "input_ids").ClearField("data_type")),
        "no data_type",
    ),
    "other dtype": (
        edit(LLM, lambda c: setattr(tensor(c, "input_ids"), "data_type", 9)),
        "data_type INT64, expected INT32",
    ),
    "other rank": (
        edit(LLM, lambda c: tensor(c, "input_ids").dims.append(1)),
        "dims [-1, 1], expected [-1]",
    ),
    "scalar without reshape": (
        edit(LLM, lambda c: tensor(c, "temperature").ClearField("reshape")),
        "reshape must be empty",
    ),
    "required made optional": (
        edit(LLM, lambda c: setattr(tensor(c, "request_output_len"), "optional", True)),
        "optional: true, expected false",
    ),
    "not ragged": (
        edit(LLM, lambda c: setattr(tensor(c, "draft_input_ids"), "allow_ragged_batch", False)),
        "allow_ragged_batch must be true",
    ),
    "input twice": (
        edit(LLM, lambda c: c.input.append(tensor(c, "seed"))),
        "'seed' is declared 2 times",
    ),
    "misspelt input": (
        edit(BLS, lambda c: setattr(tensor(c, "temperature"), "name", "temprature")),
        "did you mean 'temperature'",
    ),
    "input gone": (
        edit(LLM, lambda c: drop_input(c, "request_output_len")),
        "'request_output_len' is missing",
    ),
    "optional input gone": (
        edit(BLS, lambda c: drop_input(c, "seed")),
        "'seed' is not declared: no request can use it",
    ),
    "output gone": (
        edit(LLM, lambda c: c.output.remove(tensor(c, "sequence_length"))),
        "'sequence_length' is missing",
    ),
    "streams without decoupled": (
        edit(BLS, lambda c: c.ClearField("model_transaction_policy")),
        "decoupled must be true",
    ),
    "decoupled target": (
        edit(LLM, lambda c: setattr(c.model_transaction_policy, "decoupled", True)),
        "gives one response",
    ),
    "decoupled preprocessing": (
        edit("preprocessing", lambda c: setattr(c.model_transaction_policy, "decoupled", True)),
        "gives one response",
    ),
    "instances on a GPU": (
        edit(LLM, lambda c: setattr(c.instance_group[0], "kind", 1)),
        "asks for a GPU",
    ),
    "negative instance count": (
        edit(LLM, lambda c: setattr(c.instance_group[0], "count", -2)),
        "count -2",
    ),
    "two engines by accident": (
        edit(LLM, lambda c: setattr(c.instance_group[0], "count", 2)),
        "2 instances",
    ),
    "version that is not there": (
        replace(
            LLM, "instance_group", "version_policy { specific { versions: 3 } } instance_group"
        ),
        "asks for version 3",
    ),
    "parameter twice": (
        replace(
            LLM,
            "parameters {",
            'parameters { key: "role" value { string_value: "draft" } }\nparameters {',
        ),
        "'role' is there 2 times",
    ),
    "misspelt parameter": (
        parameter(BLS, "tensorrt_llm_draft_model_nam", "x"),
        "did you mean 'tensorrt_llm_draft_model_name'",
    ),
    "parameter gone": (parameter(LLM, "gpt_model_path", None), "'gpt_model_path' is missing"),
    "parameter empty": (parameter(LLM, "gpt_model_path", ""), "'gpt_model_path' is missing"),
    "number in words": (parameter(BLS, "max_seq_len", "many"), "'many', expected a whole number"),
    "flag that is none": (
        parameter(LLM, "exclude_input_in_output", "yess"),
        "expected true or false",
    ),
    "no such engine": (
        parameter(LLM, "gpt_model_path", "/nowhere/engine"),
        "not an engine directory",
    ),
    "no such tokenizer": (
        parameter(BLS, "tokenizer_dir", "/nowhere/tokenizer"),
        "no tokenizer.json",
    ),
    "BLS names an absent draft": (
        parameter(BLS, "tensorrt_llm_draft_model_name", "tensorrt_llm_drafts"),
        "did you mean 'tensorrt_llm_draft'",
    ),
    "BLS names an absent target": (
        parameter(BLS, "tensorrt_llm_model_name", "llm"),
        "there is no model 'llm'",
    ),
    "BLS drafts with the target": (
        parameter(BLS, "tensorrt_llm_draft_model_name", LLM),
        "is both target and draft",
    ),
    "draft plays the target": (
        parameter("tensorrt_llm_draft", "role", "target"),
        "uses it as draft",
    ),
    "unknown role": (parameter(LLM, "role", "targett"), "did you mean 'target'"),
    "no draft model for the drafter": (
        parameter(BLS, "tensorrt_llm_draft_model_name", None),
        "needs parameter 'tensorrt_llm_draft_model_name'",
    ),
    "draft model without a use": (
        speculation(drafter="ngram", draft=None),
        "speculation': draft",
    ),
    "unknown drafter": (speculation(drafter="medussa"), "no drafter 'medussa'"),
    "speculation is not JSON": (parameter(BLS, "speculation", "{"), "not JSON"),
    "impossible draft length": (speculation(max_draft_len=0), "max_draft_len"),
    "draft model gone": (remove("tensorrt_llm_draft"), "there is no model 'tensorrt_llm_draft'"),
    "preprocessing gone": (remove("preprocessing"), "there is no model 'preprocessing'"),
    "ensemble step to an absent model": (
        edit(
            ENSEMBLE,
            lambda c: setattr(c.ensemble_scheduling.step[1], "model_name", "tensorrt_lm"),
        ),
        "did you mean 'tensorrt_llm'",
    ),
    "ensemble step to an absent version": (
        edit(ENSEMBLE, lambda c: setattr(c.ensemble_scheduling.step[1], "model_version", 7)),
        "no version 7",
    ),
    "ensemble maps an unknown input": (
        remap(1, "input_map", "input_idz", "_INPUT_ID"),
        "did you mean 'input_ids'",
    ),
    "ensemble maps an unknown output": (
        remap(1, "output_map", "output_idz", "_X"),
        "has no output 'output_idz'",
    ),
    "ensemble leaves an input open": (
        remap(1, "input_map", "input_lengths", None),
        "needs 'input_lengths', which is not mapped",
    ),
    "ensemble tensor from nowhere": (
        remap(1, "input_map", "input_ids", "_INPUT_IDS"),
        "'_INPUT_IDS', wanted by tensorrt_llm, comes from nowhere",
    ),
    "ensemble output from nowhere": (
        remap(2, "output_map", "OUTPUT", "text"),
        "'text_output', wanted by ensemble, comes from nowhere",
    ),
    "ensemble tensor with two sources": (
        remap(2, "output_map", "OUTPUT", "_INPUT_ID"),
        "comes from preprocessing already",
    ),
    "ensemble dtypes differ": (
        remap(1, "input_map", "temperature", "top_k"),
        "'top_k' is INT32",
    ),
    "ensemble dims differ": (
        remap(1, "input_map", "stop_words_list", "_INPUT_ID"),
        "'_INPUT_ID' is INT32",
    ),
    "ensemble optional feeds a required input": (
        remap(0, "input_map", "REQUEST_OUTPUT_LEN", "top_k"),
        "may be left out, but preprocessing needs it",
    ),
    "ensemble input unused": (remap(1, "input_map", "seed", None), "'seed' goes nowhere"),
    "ensemble without steps": (
        edit(ENSEMBLE, lambda c: c.ensemble_scheduling.ClearField("step")),
        "has no steps",
    ),
    "ensemble batch above its steps": (
        edit(ENSEMBLE, lambda c: setattr(c, "max_batch_size", 64)),
        "takes at most 8",
    ),
    "ensemble map key twice": (
        replace(
            ENSEMBLE,
            "input_map {",
            'input_map { key: "QUERY" value: "stop_words" }\n    input_map {',
        ),
        "'QUERY' is there 2 times",
    ),
    "ensemble steps in a circle": (
        remap(0, "input_map", "END_ID", "_SEQUENCE_LENGTH"),
        "wait for each other",
    ),
    "a stray directory": (write("notes/readme.txt", "hello"), "missing; every model"),
    "an edited file": (write(f"{LLM}/1/extra.py", ""), "added since spectool wrote"),
    "batch above the engine's": (
        edit(LLM, lambda c: setattr(c, "max_batch_size", 9)),
        "above the engine's",
    ),
}


def test_good_repositories_are_clean(bls_repository, inprocess_repository):
    assert lint(bls_repository) == []
    assert lint(inprocess_repository) == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_it_finds(name, bls_repository, tmp_path):
    mutate, message = MUTATIONS[name]
    repository = tmp_path / "repo"
    shutil.copytree(bls_repository, repository)
    mutate(repository)
    findings = lint(repository)
    assert any(message in str(finding) for finding in findings), [*map(str, findings)]


INPROCESS: dict[str, tuple[Mutation, str]] = {
    "engines are not JSON": (parameter("spectool", "engine_dirs", "here"), "not JSON"),
    "an engine is gone": (
        parameter("spectool", "engine_dirs", '{"target": "/nowhere"}'),
        "not an engine directory",
    ),
    "a tokenizer is gone": (
        parameter("spectool", "tokenizer_dirs", '{"target": "/nowhere"}'),
        "no tokenizer.json in /nowhere",
    ),
    "no recipe": (parameter("spectool", "recipe", None), "'recipe' is missing"),
}


@pytest.mark.parametrize("name", INPROCESS)
def test_it_finds_in_one_model(name, inprocess_repository, tmp_path):
    mutate, message = INPROCESS[name]
    repository = tmp_path / "repo"
    shutil.copytree(inprocess_repository, repository)
    mutate(repository)
    assert any(message in str(finding) for finding in lint(repository))


def test_a_parse_error_has_line_and_column(bls_repository, tmp_path):
    repository = tmp_path / "repo"
    shutil.copytree(bls_repository, repository)
    (repository / LLM / "config.pbtxt").write_text('name: "tensorrt_llm"\nmax_batch_size: four\n')
    found = [f for f in lint(repository) if f.file == f"{LLM}/config.pbtxt" and f.line]
    assert (found[0].line, found[0].column) == (2, 17)
    assert re.match(r"error: tensorrt_llm/config.pbtxt:2:17: .*four", str(found[0]))


def test_a_finding_about_a_name_has_its_line(bls_repository, tmp_path):
    repository = tmp_path / "repo"
    shutil.copytree(bls_repository, repository)
    parameter(BLS, "tensorrt_llm_model_name", "ghost")(repository)
    [finding] = [f for f in lint(repository) if "ghost" in f.message]
    lines = (repository / BLS / "config.pbtxt").read_text().splitlines()
    assert '"ghost"' in lines[finding.line - 1]


def test_an_engine_swapped_since_the_repository_was_written_is_found(
    bls_repository, built, tmp_path
):
    repository = tmp_path / "repo"
    shutil.copytree(bls_repository, repository)
    engine = tmp_path / "engine"
    shutil.copytree(built.engines["target"], engine)
    (engine / "manifest.json").write_text('{"digest": "other"}')
    manifest = json.loads((repository / "manifest.json").read_text())
    manifest["engines"]["target"] = "first"
    (repository / "manifest.json").write_text(json.dumps(manifest))
    parameter(LLM, "gpt_model_path", str(engine))(repository)
    assert any(
        "engine other, the repository was made for first" in str(f) for f in lint(repository)
    )


def test_many_problems_are_said_at_once_errors_first(bls_repository, tmp_path):
    repository = tmp_path / "repo"
    shutil.copytree(bls_repository, repository)
    for name in ("unknown role", "no such tokenizer", "two engines by accident", "no model.py"):
        MUTATIONS[name][0](repository)
    levels = [finding.level for finding in lint(repository)]
    assert levels.count("error") >= 2
    assert levels == sorted(levels)
    with pytest.raises(InputError, match="error\\(s\\)"):
        raise_errors(repository, lint(repository))


def test_other_peoples_models_are_not_held_to_our_contract(tmp_path):
    model = tmp_path / "preprocessing"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text("class TritonPythonModel: ...\n")
    (model / "config.pbtxt").write_text(
        'name: "preprocessing" backend: "python" max_batch_size: 4\n'
        'input { name: "QUERY" data_type: TYPE_STRING dims: 1 }\n'
        'output { name: "ANYTHING" data_type: TYPE_INT32 dims: -1 }\n'
        'parameters { key: "their_own" value { string_value: "${x}x" } }\n'.replace("${x}", "")
    )
    assert lint(tmp_path) == []


def test_what_is_no_repository_is_said():
    with pytest.raises(InputError, match="not a directory"):
        lint(Path("/nowhere/at/all"))


def test_an_empty_directory_has_no_models(tmp_path):
    [finding] = lint(tmp_path)
    assert "no model directories" in finding.message
