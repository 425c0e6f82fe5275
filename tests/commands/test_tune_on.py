"""`spectool tune --on ray`: every node measures, and the choice is the one that is made here."""

import itertools
import json

import numpy as np
import pytest

from tests.engine_fixtures import EOS_ID, VOCAB_SIZE, tiny_recipe, write_byte_tokenizer
from tests.tiny import hf_config, hf_tensors, write_checkpoint
from toolkit.cli import main
from toolkit.recipe.load import dump_recipe

TEXTS = [f"{word} {word} and {word} again" for word in ("red", "one", "la", "ha", "no", "x y")]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("tune-on")
    write_parrot(root / "target")
    lines = [json.dumps({"prompt": text}) for text in TEXTS]
    (root / "demo.jsonl").write_text("\n".join(lines), encoding="utf-8")
    recipe = tiny_recipe(root, drafter="ngram")
    changes = {"k": (1, 8), "batch": (1,), "max_tokens": 40}
    changes["prompts"] = {"demo": str(root / "demo.jsonl")}
    recipe = recipe.model_copy(update={"tune": recipe.tune.model_copy(update=changes)})
    (root / "tiny.yaml").write_text(dump_recipe(recipe), encoding="utf-8")
    return root


def write_parrot(directory):
    """A model whose layers add nothing: it says the last token again and again.

    Prompt lookup drafts that token, so k = 8 gives nine tokens a step against two at k = 1. With
    one thread, noise does not change which is better: a step of nine tokens is not dearer for
    threads that wait for each other on a busy machine.
    """
    config = {"vocab_size": VOCAB_SIZE, "eos_token_id": EOS_ID}
    tensors = hf_tensors(hf_config("llama", **config), scale=0.2)
    for name in tensors:
        if "o_proj" in name or "down_proj" in name:
            tensors[name] = np.zeros_like(tensors[name])
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    write_checkpoint(directory, tensors=tensors, **config)
    write_byte_tokenizer(directory)


def tune(place, out, capsys, *more):
    words = ["tune", str(place / "tiny.yaml"), "--store", str(place / "store"), "--out", str(out)]
    words += ["--threads", "1"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--mode", "grid", "--json", *more])
    said = capsys.readouterr()
    assert ended.value.code in (0, None), said.err
    return json.loads(said.out), said.err


def test_all_nodes_measure_and_the_choice_is_the_same(ray_cluster, place, tmp_path, capsys):
    here, _ = tune(place, tmp_path / "here", capsys)
    on = ("--on", f"ray:{ray_cluster.address}")
    there, _ = tune(place, tmp_path / "there", capsys, *on)
    assert there["rounds"] == {"planned": 6, "measured": 6, "resumed": 0}
    assert [(c["verdict"], c["k"]) for c in there["choices"]] == [
        (c["verdict"], c["k"]) for c in here["choices"]
    ]
    assert [(c["verdict"], c["k"]) for c in here["choices"]] == [("on", 8)]
    assert len({slot["node"] for slot in there["timeline"]}) == 3
    assert len(there["timeline"]) == 6
    assert "timeline" not in here
    for name in {slot["node"] for slot in there["timeline"]}:
        slots = sorted(
            (s["start"], s["start"] + s["seconds"]) for s in there["timeline"] if s["node"] == name
        )
        assert all(one[1] <= two[0] for one, two in itertools.pairwise(slots))
    report = (tmp_path / "there" / "report.html").read_text()
    assert "Which machine measured what, and when" in report
    assert "Which machine" not in (tmp_path / "here" / "report.html").read_text()
    # The same command goes on from the journal: nothing is left to measure.
    again, _ = tune(place, tmp_path / "there", capsys, *on)
    assert again["rounds"]["resumed"] == 6
    assert again["settings"] == there["settings"]


def test_nodes_trace_too_and_predict_what_this_machine_does(ray_cluster, place, tmp_path, capsys):
    words = ("--mode", "trace", "--k", "1..8")
    here, _ = tune(place, tmp_path / "here", capsys, *words)
    there, said = tune(
        place, tmp_path / "there", capsys, *words, "--on", f"ray:{ray_cluster.address}"
    )
    assert "trace demo (" in said
    assert "step times (" in said
    assert there["trace"]["prompts"] == here["trace"]["prompts"] == 6
    assert there["trace"]["outputs_cached"]  # the same texts: they were in the store
    # Acceptance is exact, whoever reads; times are those of the moment.
    for found in (here, there):
        assert [cell["k"] for cell in found["trace"]["summary"]] == list(range(9))
        assert found["trace"]["step_times"]
    assert [c["acceptance_length"] for c in there["trace"]["summary"]] == [
        c["acceptance_length"] for c in here["trace"]["summary"]
    ]
    # Only the points that are worth it are measured, plain decoding among them, by several nodes.
    ks = {cell["k"] for cell in there["summary"]}
    assert 0 in ks
    assert len(ks) <= 4
    assert len({slot["node"] for slot in there["timeline"]}) >= 2
    for predicted, measured in (
        point["acceptance_length"] for point in there["trace"]["predicted_and_measured"]
    ):
        assert predicted == pytest.approx(measured)
    # The same command finds traces, step times and rounds.
    again, _ = tune(place, tmp_path / "there", capsys, *words, "--on", f"ray:{ray_cluster.address}")
    assert again["rounds"]["resumed"] == there["rounds"]["measured"]
    assert again["trace"]["step_times"] == there["trace"]["step_times"]


def test_nodes_read_a_log(ray_cluster, place, tmp_path, capsys):
    lines = [json.dumps({"prompt": text, "output": "nnnnnnnn"}) for text in TEXTS]
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(lines), encoding="utf-8")
    words = ("--mode", "trace", "--log", str(log), "--k", "1,2")
    here, _ = tune(place, tmp_path / "here", capsys, *words)
    there, _ = tune(place, tmp_path / "there", capsys, *words, "--on", f"ray:{ray_cluster.address}")
    assert there["trace"]["log"] == str(log)
    assert there["trace"]["agreement"] == here["trace"]["agreement"]
    assert [c["acceptance_length"] for c in there["trace"]["summary"]] == [
        c["acceptance_length"] for c in here["trace"]["summary"]
    ]
