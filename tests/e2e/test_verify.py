"""`verify URL` of a real Triton server: both layouts are lossless."""

import json

import pytest

from toolkit.cli import main

pytestmark = pytest.mark.triton


def test_both_layouts_are_lossless_over_http(deployment, capsys, tmp_path):
    prompts = tmp_path / "letters.jsonl"
    lines = (json.dumps({"prompt": letter * 9}) for letter in "abcdef")
    prompts.write_text("\n".join(lines))
    few = ["--max-tokens", "20", "--samples", "8", "--sample-prompts", "2", "--sample-tokens", "8"]
    arguments = [deployment.address.http, "--prompt-set", str(prompts), "--json"]
    with pytest.raises(SystemExit) as ended:
        main(["verify", *arguments, *few, "--checks", "greedy,sampled"])
    found = json.loads(capsys.readouterr().out)
    assert ended.value.code in (0, None), found["conclusion"]
    [domain] = found["checks"]["greedy"]["domains"]
    assert domain["identical"] == domain["prompts"] == 6
    assert domain["draft_tokens"] > 0
    assert found["checks"]["sampled"]["passed"]


def test_a_draft_length_beyond_the_deployments_is_refused(deployment, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["verify", deployment.address.http, "--checks", "greedy", "--k", "99"])
    assert ended.value.code == 1
    assert "num_draft_tokens: 99, at most" in capsys.readouterr().err
