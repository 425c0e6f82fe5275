"""NVIDIA's templates, filled, and the ways in which filling them goes wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from toolkit.serving.lint import lint

STRING, INT32, BOOL = "TYPE_STRING", "TYPE_INT32", "TYPE_BOOL"


def config(name, inputs, outputs, parameters, more='backend: "python"') -> str:
    def tensors(kind, found):
        return "".join(
            f'{kind} {{ name: "{n}" data_type: {t} dims: -1 {o} }}\n' for n, t, o in found
        )

    return (
        f'name: "{name}"\n{more}\nmax_batch_size: 4\n'
        + tensors("input", [(n, t, "optional: true") for n, t in inputs])
        + tensors("output", [(n, t, "") for n, t in outputs])
        + "".join(
            f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}\n'
            for k, v in parameters.items()
        )
    )


LLM_INPUTS = [("input_ids", INT32), ("streaming", BOOL)]


def filled(directory: Path, changes: dict[str, dict[str, str | None]], *, streams=True) -> Path:
    """NVIDIA's BLS over two engines' models, as far as lint looks at it."""
    tokenizer = directory / "tokenizer"
    tokenizer.mkdir()
    models = {
        "preprocessing": ([("QUERY", STRING)], [("INPUT_ID", INT32)],
                          {"tokenizer_dir": str(tokenizer), "add_special_tokens": "true"}),
        "postprocessing": ([("TOKENS_BATCH", INT32)], [("OUTPUT", STRING)],
                           {"tokenizer_dir": str(tokenizer)}),
        "tensorrt_llm": (LLM_INPUTS, [("output_ids", INT32)],
                         {"exclude_input_in_output": "false"}),
        "tensorrt_llm_draft": (LLM_INPUTS, [("output_ids", INT32)],
                               {"exclude_input_in_output": "false"}),
        "tensorrt_llm_bls": ([("text_input", STRING), ("stream", BOOL)], [("text_output", STRING)],
                             {"tensorrt_llm_model_name": "tensorrt_llm",
                              "tensorrt_llm_draft_model_name": "tensorrt_llm_draft",
                              "accumulate_tokens": "${accumulate_tokens}"}),
    }  # fmt: skip
    repository = directory / "repository"
    for name, (inputs, outputs, given) in models.items():
        parameters = {k: v for k, v in {**given, **changes.get(name, {})}.items() if v is not None}
        decoupled = name.startswith("tensorrt_llm") and streams
        more = 'backend: "python"'
        if decoupled:
            more += "\nmodel_transaction_policy { decoupled: true }"
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1/model.py").write_text("class TritonPythonModel: ...\n")
        (repository / name / "config.pbtxt").write_text(
            config(name, inputs, outputs, parameters, more)
        )
    return repository


def said(repository: Path) -> list[str]:
    return [str(finding) for finding in lint(repository)]


def test_a_filled_one_has_no_errors_but_is_told_what_its_loop_cannot(tmp_path):
    found = lint(filled(tmp_path, {}))
    assert [f.level for f in found] == ["warning", "warning"]
    assert {f.rule for f in found} == {"config", "upstream"}
    assert any("neither streams while it speculates" in f.message for f in found)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"preprocessing": {"tokenizer_dir": "${tokenizer_dir}"}}, "'tokenizer_dir' is missing"),
        ({"preprocessing": {"add_special_token": "true"}}, "mean 'add_special_tokens'"),
        ({"postprocessing": {"tokenizer_dir": "/nowhere"}}, "/nowhere is not there"),
        ({"postprocessing": {"skip_special_token": "true"}}, "mean 'skip_special_tokens'"),
        ({"tensorrt_llm_bls": {"acumulate_tokens": "true"}}, "mean 'accumulate_tokens'"),
        ({"tensorrt_llm": {"exclude_input_in_output": "true"}}, "does not end"),
        ({"tensorrt_llm_draft": {"exclude_input_in_output": "True"}}, "does not end"),
        (
            {"tensorrt_llm_bls": {"tensorrt_llm_draft_model_name": "tensorrt_llm_drafts"}},
            "did you mean 'tensorrt_llm_draft'",
        ),
    ],
)
def test_a_single_mistake_is_an_error(tmp_path, changes, text):
    errors = [line for line in said(filled(tmp_path, changes)) if line.startswith("error")]
    assert len(errors) == 1
    assert text in errors[0]
    assert re.match(r"error: \w+/config\.pbtxt", errors[0])


def test_streams_that_a_client_may_ask_for_and_never_gets(tmp_path):
    found = said(filled(tmp_path, {}, streams=False))
    assert any("tensorrt_llm gives one response to a request" in line for line in found)
