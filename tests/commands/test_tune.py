"""`spectool tune` from the command line, on a tiny real model."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tests.engine_fixtures import tiny_recipe, write_tiny_model
from toolkit.cli import main
from toolkit.recipe.load import dump_recipe, load_recipe
from toolkit.tuning.intervals import Interval
from toolkit.tuning.objective import Gains

TEXTS = ["copy this: red red blue", "one two one two", "a b c a b c", "ha ha ha", "la li la", "xyz"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A recipe, its prompts, and a store that the tests share, so that building happens once."""
    root = tmp_path_factory.mktemp("tune")
    write_tiny_model(root / "target")
    write_prompts(root, "demo", TEXTS)
    recipe = tiny_recipe(root, drafter="ngram")
    changes = {"k": (2, 3), "batch": (1, 2), "max_tokens": 12}
    changes["prompts"] = {"demo": str(root / "demo.jsonl")}
    recipe = recipe.model_copy(update={"tune": recipe.tune.model_copy(update=changes)})
    (root / "tiny.yaml").write_text(dump_recipe(recipe), encoding="utf-8")
    return root


def write_prompts(root, name, texts):
    lines = (json.dumps({"prompt": text}) for text in texts)
    (root / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")


def arguments(place, out, *more):
    recipe, store = str(place / "tiny.yaml"), str(place / "store")
    return ["tune", recipe, "--mode", "grid", "--store", store, "--out", str(out), *more]


def tune(place, out, *more):
    with pytest.raises(SystemExit) as ended:
        main(arguments(place, out, *more))
    return ended.value.code


def test_it_measures_prints_and_writes(place, tmp_path, capsys):
    assert tune(place, tmp_path / "out") in (0, None)
    said = capsys.readouterr()
    assert "batch size 1" in said.out
    assert "batch size 2" in said.out
    assert "Over all prompts: " in said.out
    assert "round 9/9: " in said.err  # six rounds of one prompt and three of two
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"results.json", "records.csv", "report.html", "tuned.yaml"} <= names
    load_recipe(str(tmp_path / "out" / "tuned.yaml"))
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    # Nine rounds of plain decoding and two draft lengths; 6 x 3 + 3 x 2 x 3 requests.
    assert len(found["runs"]) == 27
    assert len(found["records"]) == 36
    assert all(record["verify_steps"] > 0 for record in found["records"])


def test_a_trace_is_the_default_where_the_drafter_has_one(place, tmp_path, capsys):
    recipe, where = str(place / "tiny.yaml"), ["--store", str(place / "store"), "--json"]
    with pytest.raises(SystemExit):
        main(["tune", recipe, *where, "--out", str(tmp_path / "a")])
    said = capsys.readouterr()
    assert "traced 6 texts" in said.err
    assert json.loads(said.out)["trace"]["prompts"] == 6
    with pytest.raises(SystemExit):
        main(["tune", recipe, *where, "--out", str(tmp_path / "b"), "--mode", "grid"])
    assert "trace" not in json.loads(capsys.readouterr().out)


def test_a_second_run_resumes_and_json_is_one_document(place, tmp_path, capsys):
    tune(place, tmp_path / "out", "--batch", "1")
    capsys.readouterr()
    tune(place, tmp_path / "out", "--json")
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["rounds"] == {"planned": 9, "measured": 9, "resumed": 6}
    assert "6 of 9 rounds were measured before" in said.err
    assert found["files"]["tuned.yaml"] == str(tmp_path / "out" / "tuned.yaml")
    tune(place, tmp_path / "out", "--fresh", "--batch", "2", "--json")
    assert json.loads(capsys.readouterr().out)["rounds"]["resumed"] == 0


def test_acceptance_is_told_in_another_tools_words_too(place, tmp_path, capsys):
    assert tune(place, tmp_path / "out", "--as", "sglang") in (0, None)
    assert "batch size 2, as sglang counts it" in capsys.readouterr().out
    assert tune(place, tmp_path / "out", "--as", "sglang", "--json") in (0, None)
    found = json.loads(capsys.readouterr().out)
    spoken = {(row["batch_size"], row["k"]): row for row in found["as"]["summary"]}
    cells = [cell for cell in found["summary"] if cell["k"]]
    assert len(spoken) == len(cells) == 4
    for cell in cells:  # emitted over verified tokens
        rate = (cell["accepted_tokens"] / cell["verify_steps"] + 1) / (cell["k"] + 1)
        assert spoken[cell["batch_size"], cell["k"]]["acceptance_rate"] == pytest.approx(rate)


def test_other_conditions_start_anew(place, tmp_path, capsys):
    tune(place, tmp_path / "out", "--batch", "2")
    capsys.readouterr()
    tune(place, tmp_path / "out", "--batch", "2", "--json", "--temperature", "0.7", "--seed", "3")
    found = json.loads(capsys.readouterr().out)
    assert found["rounds"]["resumed"] == 0
    assert found["settings"]["sampling"]["temperature"] == 0.7


def test_trace_mode_predicts_everything_and_measures_little(place, tmp_path, capsys):
    assert tune(place, tmp_path / "out", "--mode", "trace", "--k", "1..4") in (0, None)
    said = capsys.readouterr()
    assert "traced 6 texts in" in said.err
    assert "to confirm" in said.err
    assert "batch size 2, predicted for every k" in said.out
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    predicted = found["trace"]["summary"]
    assert [cell["k"] for cell in predicted] == [0, 1, 2, 3, 4] * 2
    # Four rounds of one request and two of two, at plain decoding and at up to three lengths.
    assert found["rounds"]["measured"] == 6
    for batch in (1, 2):
        ks = {run["k"] for run in found["runs"] if run["batch_size"] == batch}
        assert 0 in ks
        assert len(ks) in (2, 3, 4)
    compared = found["trace"]["predicted_and_measured"]
    assert len(compared) == len(found["summary"])
    for point in compared:
        if point["k"]:
            assert point["acceptance_length"][0] == pytest.approx(point["acceptance_length"][1])
    assert found["trace"]["step_times"]
    assert "Predicted against measured" in (tmp_path / "out" / "report.html").read_text()

    tune(place, tmp_path / "out", "--mode", "trace", "--k", "1..4", "--json")
    again = json.loads(capsys.readouterr().out)
    assert (again["trace"]["generated_tokens"], again["trace"]["outputs_cached"]) == (0, True)
    assert again["rounds"] == {"planned": 6, "measured": 6, "resumed": 6}
    assert again["trace"]["summary"] == predicted  # from the step times of the first run


def test_the_verdict_of_a_trace_is_its_corrected_prediction(place, tmp_path, capsys, monkeypatch):
    def sevenfold(cells, *_):
        gains = Gains(Interval(7.0, 6.0, 8.0), None, None)
        return [
            cell if cell.plain else replace(cell, speedup=gains.tpot, gains=gains) for cell in cells
        ]

    monkeypatch.setattr("toolkit.tuning.results.corrected", sevenfold)
    short = ["--k", "1,2", "--batch", "1", "--max-tokens", "8", "--json"]
    assert tune(place, tmp_path / "out", "--mode", "trace", *short) in (0, None)
    found = json.loads(capsys.readouterr().out)
    assert [choice["speedup"]["value"] for choice in found["choices"]] == [7.0]
    assert (
        "(7.00x, 6.00 to 8.00). These gains were predicted over all 6 prompts" in found["verdict"]
    )
    # What was measured stays what it is.
    assert all(cell["speedup"]["value"] < 7 for cell in found["summary"] if cell["k"])
    tune(place, tmp_path / "grid", "--mode", "grid", *short)
    assert "predicted" not in json.loads(capsys.readouterr().out)["verdict"]


@pytest.mark.parametrize("fresh", [[], ["--fresh"]])
def test_more_rounds_are_measured_where_few_speak_against_the_prediction(
    fresh, place, tmp_path, capsys, monkeypatch
):
    write_prompts(tmp_path, "many", [f"{text} {n}" for text in TEXTS for n in range(3)])
    contests = iter([[1], []])
    monkeypatch.setattr("toolkit.tuning.confirm.contested", lambda *_: next(contests))
    short = ["--mode", "trace", "--k", "1,2", "--batch", "1", "--max-tokens", "8", "--json"]
    short += ["--set", f"tune.prompts={{many: {tmp_path / 'many.jsonl'}}}"]
    assert tune(place, tmp_path / "out", *short, *fresh) in (0, None)
    said = capsys.readouterr()
    assert "batch 1: few rounds speak against the prediction; measuring more" in said.err
    found = json.loads(said.out)
    # Four rounds at first, then twice as many.
    assert found["rounds"] == {"planned": 8, "measured": 8, "resumed": 0}
    for point in found["trace"]["predicted_and_measured"]:
        if point["k"]:
            assert point["acceptance_length"][0] == pytest.approx(point["acceptance_length"][1])


def test_a_log_is_traced_without_generating(place, tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    pairs = [{"prompt": text, "output": f"{text} and again {text}"} for text in TEXTS]
    log.write_text("\n".join(map(json.dumps, pairs)), encoding="utf-8")
    short = ["--mode", "trace", "--k", "1,2", "--batch", "1", "--max-tokens", "8"]
    assert tune(place, tmp_path / "out", *short, "--log", str(log), "--json") in (0, None)
    found = json.loads(capsys.readouterr().out)
    assert found["trace"]["generated_tokens"] == 0
    assert found["trace"]["prompts"] == 6
    assert {cell["domain"] for cell in found["trace"]["summary"]} == {"log"}
    # A random model would not have said any of this.
    assert any("of the log's tokens" in finding["text"] for finding in found["findings"])

    log.write_text('{"prompt": "a", "output": "b"}\n{"prompt": "c", "output": "dd"}\n')
    assert tune(place, tmp_path / "out", *short, "--log", str(log)) == 2
    assert f"{log}:1: output: one token; a trace needs two" in capsys.readouterr().err

    log.write_text('{"prompt": "a", "output": "bc<|eot_id|>"}\n{"prompt": "c", "output": "dd"}\n')
    assert tune(place, tmp_path / "out", *short, "--log", str(log)) == 2
    assert "'<|eot_id|>' is a special token of another tokenizer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--mode", "trce"], "--mode trce: allowed are trace and grid; did you mean 'trace'?"),
        (["--log", "x.jsonl"], "--log x.jsonl: only a trace reads logs; leave out --mode grid"),
        (["--log", "x.jsonl", "--mode", "trace"], "--log x.jsonl: not readable"),
    ],
)
def test_modes_and_logs_that_cannot_be_are_refused(place, tmp_path, capsys, options, sentence):
    assert tune(place, tmp_path / "out", *options) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--k", "8..2"], "--k 8..2: range '8..2' runs backwards; write 2..8"),
        (["--k", "0"], "--k 0: draft lengths start at 1"),
        (["--as", "vlm"], "unknown dialect 'vlm'; did you mean 'vllm'?"),
        (["--batch", "16"], "batch size 16 is above engine.max_batch_size (8)"),
        (["--set", "speculation.drafter=none", "--set", "speculation.max_draft_len=1"], "none"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(place, tmp_path, capsys, options, sentence):
    assert tune(place, tmp_path / "out", *options) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


def test_a_prompt_that_does_not_fit_is_refused(place, tmp_path, capsys):
    write_prompts(tmp_path, "long", ["short one", "x" * 400])
    option = f"tune.prompts={{mine: {tmp_path / 'long.jsonl'}}}"
    assert tune(place, tmp_path / "out", "--set", option) == 2
    assert "mine: prompt 'mine-02' has" in capsys.readouterr().err


def test_without_a_recipe_it_takes_the_one_here_or_the_one_built_last(
    place, tmp_path, capsys, monkeypatch
):
    empty = ["tune", "--store", str(tmp_path / "empty"), "--json"]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(empty)
    assert ended.value.code == 2
    assert "nothing was built in this store yet" in capsys.readouterr().err

    tune(place, tmp_path / "out", "--batch", "2", "--k", "2")
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["tune", "--store", str(place / "store"), "--json", "--set", "tune.batch=2"])
    said = capsys.readouterr()
    assert "tuning the recipe that was built last: tiny" in said.err
    assert json.loads(said.out)["recipe"]["tune"]["k"] == [2, 3]  # as it was written
    assert json.loads(said.out)["complete"]
    assert (tmp_path / "spectool-results" / "tiny" / "tuned.yaml").is_file()

    (tmp_path / "recipe.yaml").write_text((place / "tiny.yaml").read_text())
    with pytest.raises(SystemExit):
        main(["tune", "--store", str(place / "store"), "--json", "--set", "name=here"])
    assert json.loads(capsys.readouterr().out)["recipe"]["name"] == "here"


@pytest.mark.parametrize(("blow", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_run_that_is_stopped_goes_on_from_its_journal(place, tmp_path, capsys, blow, code):
    out = tmp_path / "out"
    long = ["--max-tokens", "120"]
    tune(place, tmp_path / "warm", "--batch", "2")  # build before the clock runs
    process = subprocess.Popen(
        [sys.executable, "-m", "toolkit.cli", *arguments(place, out, *long)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    for line in process.stderr:
        if line.startswith("round 2/9"):
            process.send_signal(blow)
            break
    said, complaints = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in complaints
    if blow == signal.SIGINT:
        assert "the same command goes on from here" in complaints
        assert "Over all prompts" in said  # what was measured is reported
        assert "# From an unfinished run" in (out / "tuned.yaml").read_text()
    capsys.readouterr()
    tune(place, out, *long, "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["complete"]
    assert 2 <= found["rounds"]["resumed"] < 9


def test_help_imports_nothing_heavy():
    code = "import sys, toolkit.commands.tune; print([m for m in ('rich.table', 'plotly', "
    code += "'openvino', 'numpy') if m in sys.modules])"
    started = time.monotonic()
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
    assert time.monotonic() - started < 20


@pytest.mark.model
def test_a_real_model_edits_more_than_twice_as_fast(tmp_path, capsys, smollm2_gguf):
    options = {"target.checkpoint": smollm2_gguf, "tune.prompts": "{edit: edit}"}
    sets = [word for name, value in options.items() for word in ("--set", f"{name}={value}")]
    short = ["--k", "2,6", "--batch", "1", "--prompts-per-domain", "8", "--max-tokens", "40"]
    where = ["--store", str(tmp_path / "store"), "--out", str(tmp_path / "out"), "--json"]
    with pytest.raises(SystemExit) as ended:
        main(["tune", "smollm2/135m_ngram", "--mode", "grid", *sets, *short, *where])
    assert ended.value.code in (0, None)
    found = json.loads(capsys.readouterr().out)
    cells = {cell["k"]: cell for cell in found["summary"]}
    # The answer copies the passage, so prompt lookup gets several tokens right in each step.
    assert cells[6]["acceptance_length"] > 2.5
    assert cells[6]["acceptance_length"] > cells[2]["acceptance_length"]
    assert found["choices"][0]["verdict"] == "on"
    assert found["choices"][0]["speedup"]["value"] > 2
