"""`spectool tune --url`: strict stand-ins of trtllm-serve, one for each draft length."""

import json
import sys
from contextlib import ExitStack

import pytest

from tests import tiny_heads as heads
from tests.backends.fake_deployment import FakeDeployment
from tests.backends.fake_trtllm_serve import FakeTrtllmServe
from tests.backends.test_llmapi_deployment import RECIPE
from tests.commands.conftest import spectool
from tests.tiny import write_checkpoint
from toolkit.recipe.load import load_recipe

__all__ = ["spectool"]

TEXTS = ["red red blue", "la la li", "a b c a b", "ha ha ha"]  # no answer meets the end token
STEP_S = 0.02


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """As it is deployed; TensorRT-LLM is nowhere on this machine."""
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
    write_checkpoint(tmp_path / "target", dtype="float16")
    heads.write_heads(tmp_path / "heads", heads.eagle3(), heads.eagle3_config())
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": t, "raw": True}) for t in TEXTS))
    path = tmp_path / "recipe.yaml"
    tune = {"batch": [1, 2], "max_tokens": 13, "prompts": {"mine": str(prompts)}}
    path.write_text(json.dumps({**RECIPE, "tune": tune}), encoding="utf-8")
    return path


@pytest.fixture
def servers():
    """`servers({k: accepted in each step})`: the words that name them."""
    with ExitStack() as stack:

        def start(accepted):
            words = []
            for k, pattern in accepted.items():
                deployment = FakeDeployment(k=k, accepted=pattern, step_s=STEP_S)
                server = stack.enter_context(FakeTrtllmServe(deployment))
                words += ["--url", f"{k}={server.url}"]
            return words

        yield start


def test_deployments_are_measured_in_turns(spectool, recipe, servers, tmp_path):
    urls = servers({0: (), 2: (2,), 4: (3,)})
    urls[1] = urls[1].replace("http://", "http://me:secret@")
    ran = spectool("tune", recipe, *urls, "--out", str(tmp_path / "out"), "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    lengths = {(c["batch_size"], c["k"]): c["acceptance_length"] for c in found["summary"]}
    # 13 tokens: one of the prefill, then four steps of 2 + 1, or three of 3 + 1.
    assert lengths == {(b, k): n for b in (1, 2) for k, n in ((0, 1.0), (2, 3.0), (4, 4.0))}
    times = {(c["batch_size"], c["k"]): c["tpot_p50_ns"] / 1e9 for c in found["summary"]}
    assert times[1, 0] == pytest.approx(STEP_S, rel=0.3)
    assert times[1, 4] == pytest.approx(STEP_S / 4, rel=0.3)
    assert found["choices"][0]["verdict"] == "on"
    assert found["draft_length_schedule"] == [[1, 4]]
    addresses = [word.partition("=")[2].replace("me:secret@", "") for word in urls[1::2]]
    assert list(found["settings"]["machine"].values()) == addresses
    for file in (tmp_path / "out").iterdir():
        assert b"secret" not in file.read_bytes()
    assert load_recipe(str(tmp_path / "out" / "tuned.yaml")).speculation.max_draft_len == 4


def test_a_server_that_drafts_more_than_was_said_is_noticed(spectool, recipe, servers):
    [_, plain, _, drafting] = servers({0: (), 4: (3,)})
    words = ["--url", plain, "--url", drafting.replace("4=", "2=")]
    ran = spectool("tune", recipe, *words, "--out", str(recipe.parent / "out"))
    assert ran.code == 1
    assert "a verify step emits at most 3 (draft length 2 + 1)" in ran.err


def test_a_server_that_is_not_there_is_named(spectool, recipe, servers):
    words = [*servers({0: ()}), "--url", "3=http://127.0.0.1:9"]
    ran = spectool("tune", recipe, *words, "--out", str(recipe.parent / "out"))
    assert ran.code == 1
    assert "http://127.0.0.1:9" in ran.err
    assert "connection refused" in ran.err


@pytest.mark.parametrize(
    ("words", "sentences"),
    [
        (["--url", "99999=http://a"], ["--url 99999=http://a: expected a draft length"]),
        (["--url", "4"], ["--url 4: expected a draft length, = and an address"]),
        (["--url", "x=http://a", "--url", "-1=http://b"], ["--url x=http://a", "--url -1="]),
        (["--url", "3=http://a"], ["none of them is without speculation (0=URL)"]),
        (["--url", "0=http://a"], ["name a server that drafts as well"]),
        (["--url", "0=http://a", "--url", "0=http://b"], ["0 has an address already: http://a"]),
        (
            ["--url", "0=http://a", "--url", "3=http://b", "--k", "2", "--mode", "trace"],
            ["--k and --url exclude each other", "--mode trace and --url exclude each other"],
        ),
        (
            ["--url", "0=http://a", "--url", "3=http://b", "--on", "ray", "--log", "x.jsonl"],
            ["--on and --url exclude each other", "--log and --url exclude each other"],
        ),
        (
            [
                *("--url", "0=http://a", "--url", "3=http://b"),
                *("--set", "backend=cpu", "--set", "speculation={drafter: ngram}"),
            ],
            ["backend 'cpu' is not asked over the network here; leave --url out"],
        ),
    ],
)
def test_what_cannot_be_measured_so_is_refused(words, sentences, spectool, recipe):
    ran = spectool("tune", recipe, *words)
    assert ran.code == 2
    assert [sentence for sentence in sentences if sentence not in ran.err] == []
    assert "built " not in ran.err
