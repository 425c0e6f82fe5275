"""A model repository is for backends that a Triton serves."""

import json


def test_a_deployment_of_the_llm_api_is_no_model_repository(spectool, tmp_path):
    path = tmp_path / "r.yaml"
    recipe = {
        "name": "t",
        "backend": "pytorch",
        "target": {"checkpoint": "org/target"},
        "speculation": {"drafter": "ngram"},
    }
    path.write_text(json.dumps(recipe), encoding="utf-8")
    ran = spectool("repo", path, "-o", tmp_path / "repository")
    assert ran.code == 2
    assert "spectool build writes its serve.sh" in ran.err
    assert not (tmp_path / "repository").exists()
