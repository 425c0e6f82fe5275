"""`train-head` and `distill` from the command line, on a tiny target."""

from __future__ import annotations

import json

import pytest

from tests.training.conftest import write_model, write_prompts

SMALL = (
    "--sequences", 12, "--heldout", 4, "--shard", 4, "--max-tokens", 12, "--generate-batch", 4,
    "--steps", 3, "--batch", 4, "--threads", 1, "--draft-vocab", 100,
)  # fmt: skip


@pytest.fixture
def recipe(tmp_path):
    write_model(tmp_path / "model")
    path = tmp_path / "r.yaml"
    path.write_text(
        "name: tiny\ntarget: {checkpoint: ./model, dtype: float32}\n"
        "speculation: {drafter: ngram}\n"
        "engine: {max_batch_size: 2, max_input_len: 32, max_seq_len: 64}\n",
        encoding="utf-8",
    )
    return path


@pytest.fixture
def prompts(tmp_path):
    return write_prompts(tmp_path / "prompts")


def test_a_head_from_a_recipe_and_again_from_where_it_stopped(spectool, recipe, prompts, tmp_path):
    out = tmp_path / "out"
    words = ("train-head", recipe, "--drafter", "eagle3", "--prompts", prompts, "-o", out, *SMALL)
    ran = spectool(*words)
    assert ran.code == 0, ran.err
    assert "acceptance_length" in ran.out
    assert "heldout shard 0:" in ran.err
    assert {path.name for path in out.iterdir()} >= {
        "config.json", "model.safetensors", "curve.jsonl", "state.safetensors", "training.json",
    }  # fmt: skip
    result = json.loads((out / "training.json").read_text())
    assert result["steps"] == 3
    assert result["data"]["sequences"] <= 12
    again = spectool(*words, "--steps", 5, "--json")
    assert "shard" not in again.err  # the data is there
    assert json.loads(again.out)["steps"] == 5

    other = spectool(*words, "--max-tokens", 14)
    assert other.code == 2
    assert "holds data of another max_tokens" in other.err


def test_a_small_draft(spectool, recipe, prompts, tmp_path):
    out = tmp_path / "out"
    small = [word if word != "--draft-vocab" else "--loss-vocab" for word in SMALL]
    ran = spectool(
        "distill", recipe, "--layers", "0,7", "--prompts", prompts, "-o", out, *small, "--json"
    )
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["heldout"]["draft_tokens"] == 3
    assert (out / "tokenizer.json").is_file()
    using = tmp_path / "draft.yaml"
    using.write_text(
        recipe.read_text().replace(
            "{drafter: ngram}", "{drafter: draft_target, draft: {checkpoint: ./out}}"
        )
    )
    ran = spectool("check", using)
    assert ran.code == 0, ran.out + ran.err


def test_a_small_draft_of_a_reduced_vocabulary(spectool, recipe, prompts, tmp_path):
    words = ("distill", recipe, "--layers", "0,7", "--prompts", prompts, "-o", tmp_path / "out")
    ran = spectool(*words, *SMALL, "--loss-vocab", 50)
    assert ran.code == 2
    assert "leave --loss-vocab out" in ran.err
    ran = spectool(*words, *SMALL)
    assert ran.code == 0, ran.err
    using = tmp_path / "draft.yaml"
    draft = "{drafter: draft_target, draft: {checkpoint: ./out}}"
    using.write_text(recipe.read_text().replace("{drafter: ngram}", draft))
    assert spectool("check", using).code == 0
    ran = spectool("generate", using, "--prompt", "Tell topic 3.", "--max-tokens", 16, "--json")
    assert ran.code == 0, ran.err
    for backend in ("tensorrt", "pytorch"):
        ran = spectool("check", using, "--set", f"backend={backend}")
        assert ran.code == 2
        assert "speculation.draft.checkpoint: says 100 of 259 tokens (lm_head_rows" in ran.err
        assert "distill it again without --draft-vocab" in ran.err
    ran = spectool("build", using, "--set", "backend=pytorch")
    assert ran.code == 2
    assert "says 100 of 259 tokens" in ran.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("train-head",), "nothing to train for drafter ngram"),
        (("train-head", "--drafter", "mtp"), "nothing to train for drafter mtp"),
        (("train-head", "--drafter", "eagle3", "--only", "both"), "expected one of generate"),
        (("train-head", "--drafter", "eagle3", "--device", "tpu"), "expected cpu, cuda or auto"),
        (("train-head", "--drafter", "eagle3", "--only", "train"), "no train shard; generate"),
        (("train-head", "--drafter", "eagle3", "--prompts", "/nope.jsonl"), "neither a file nor"),
        (("distill",), "which layers?"),
        (("distill", "--layers", "9..2"), "runs backwards"),
    ],
)
def test_bad_input(spectool, recipe, tmp_path, words, says):
    command, *rest = words
    ran = spectool(command, recipe, "-o", tmp_path / "out", *rest)
    assert ran.code == 2
    assert says in ran.err
    assert "Traceback" not in ran.err
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_a_head_goes_on_from_another_one(spectool, recipe, prompts, tmp_path):
    data = ("--prompts", prompts, "--data", tmp_path / "data")
    words = ("train-head", recipe, "--drafter", "medusa", *data)
    first, out = tmp_path / "first", tmp_path / "out"
    ran = spectool(*words, "--heads", 2, "-o", first, *SMALL)
    assert ran.code == 0, ran.err

    small = SMALL[: SMALL.index("--draft-vocab")]
    begun = (*words, *small, "-o", out, "--start-from", first)
    ran = spectool(*begun, "--heads", 3, "--draft-vocab", 50)
    assert ran.code == 2
    assert "--heads 3, but the head has 2" in ran.err
    assert "--draft-vocab 50, but the head drafts 100 tokens" in ran.err
    assert not out.exists()

    ran = spectool(*begun)
    assert ran.code == 0, ran.err
    assert "step 0, 0.0 min: held-out acceptance" in ran.err
    result = json.loads((out / "training.json").read_text())
    assert result["started_from"]["checkpoint"] == str(first)
    assert result["head"]["draft_vocab"] == 100

    ran = spectool(*begun, "--steps", 4, "--json")
    assert f"--start-from {first} is ignored" in ran.err
    assert json.loads(ran.out)["steps"] == 4
