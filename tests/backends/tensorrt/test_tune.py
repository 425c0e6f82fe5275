"""`spectool tune` for backend tensorrt, with a made-up trtllm-build and made-up bindings."""

import json

import pytest

from tests.recipes_for_tests import write_recipe
from toolkit.recipe.load import load_recipe

DRAFT = "checkpoint: ./model, dtype: float32, layers: [0]"
TEXTS = ["red red blue", "one two one", "a b c a b", "ha ha ha"]


@pytest.fixture
def tune(spectool, installation, install, tmp_path):
    """On a machine where engines can be built and run; `tune(changes...)`."""
    install("1.2.1")
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": text, "raw": True}) for text in TEXTS))

    def run(*more, draft=DRAFT, k="1..3"):
        recipe = write_recipe(tmp_path, draft, extra="backend: tensorrt\n")
        small = ["--k", k, "--batch", "1,2", "--max-tokens", "12", "--json"]
        small += ["--set", f"tune.prompts={{mine: {prompts}}}", "--out", str(tmp_path / "out")]
        return spectool("tune", recipe, *small, *more)

    return run


@pytest.mark.parametrize("draft", [DRAFT, None], ids=["draft_target", "ngram"])
def test_the_best_of_a_trace_is_measured_on_the_engines(draft, tune, tmp_path):
    ran = tune(draft=draft)
    assert ran.code == 0
    assert "traced 4 texts" in ran.err
    found = json.loads(ran.out)
    assert [cell["k"] for cell in found["trace"]["summary"]] == [0, 1, 2, 3] * 2
    compared = found["trace"]["predicted_and_measured"]
    assert len(compared) == len(found["summary"])
    for point in compared:
        if point["k"]:
            expected, measured = point["acceptance_length"]
            assert expected == pytest.approx(measured)
    load_recipe(str(tmp_path / "out" / "tuned.yaml"))


def test_the_grid_measures_the_same_acceptance(tune, tmp_path):
    """Both over all prompts: what the trace foretells of the whole set."""
    trace = json.loads(tune().out)["trace"]["summary"]
    grid = json.loads(tune("--mode", "grid", "--fresh").out)["summary"]
    lengths = [[cell["acceptance_length"] for cell in cells] for cells in (trace, grid)]
    assert lengths[0] == pytest.approx(lengths[1])


def test_sampled_texts_are_measured_since_engines_show_no_probabilities(tune):
    ran = tune("--temperature", "0.7")
    assert ran.code == 0
    assert "measuring every point: backend 'tensorrt' has no trace: engines show no" in ran.err
    assert "trace" not in json.loads(ran.out)


def test_traffic_is_traced_and_held_against_the_target(tune, tmp_path):
    log = tmp_path / "log.jsonl"
    lines = [{"prompt": text, "output": f"{text} {text}"} for text in TEXTS]
    log.write_text("\n".join(map(json.dumps, lines)))
    ran = tune("--log", str(log))
    assert ran.code == 0
    found = json.loads(ran.out)
    assert found["trace"]["generated_tokens"] == 0
    assert any("of the log's tokens" in finding["text"] for finding in found["findings"])


@pytest.mark.parametrize(
    ("name", "sentence", "instead"),
    [
        (
            "llama3_1/8b_eagle3",
            "backend 'pytorch': a deployment always drafts as it was started",
            "--url 0=URL --url 3=URL",
        ),
        (
            "vicuna/7b_medusa",
            "backend 'tensorrt': an engine with medusa inside always drafts as it was built",
            "spectool bench",
        ),
    ],
)
def test_what_always_drafts_alike_is_refused_before_anything_is_built(
    name, sentence, instead, spectool
):
    ran = spectool("tune", name)
    assert ran.code == 2
    assert sentence in ran.err
    assert instead in ran.err
    assert "built " not in ran.err


def test_select_wants_a_target_that_drafts_can_be_put_beside(spectool, tmp_path):
    recipe = write_recipe(tmp_path, DRAFT, extra="backend: tensorrt\n")
    ran = spectool("select", recipe, "--draft", "ngram")
    assert ran.code == 2
    assert "backend 'tensorrt' loads engines whole" in ran.err
