"""A deployment of the LLM API becomes a model repository too."""

import json

RECIPE = {
    "name": "t",
    "backend": "pytorch",
    "target": {"checkpoint": "org/target"},
    "speculation": {"drafter": "ngram"},
}


def test_a_deployment_of_the_llm_api_becomes_a_repository(spectool, tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(json.dumps(RECIPE), encoding="utf-8")
    ran = spectool("repo", path, "-o", tmp_path / "repository")
    assert ran.code == 0, ran.err
    assert "layout llmapi, models tensorrt_llm" in ran.out
    assert ran.out.splitlines()[-1].endswith("where Triton has package tensorrt_llm")
    linted = spectool("lint", tmp_path / "repository", "--json")
    assert json.loads(linted.out)["findings"] == []


def test_a_deployment_from_elsewhere_needs_no_tokenizer(spectool, tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(json.dumps(RECIPE), encoding="utf-8")
    built = json.loads(spectool("build", path, "--json").out)
    [made] = [made for made in built["artefacts"] if made["kind"] == "engines"]
    ran = spectool(
        "repo", path, "-o", tmp_path / "r", "--engine", f"target={made['path']}", "--json"
    )
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["entry"] == "tensorrt_llm"
