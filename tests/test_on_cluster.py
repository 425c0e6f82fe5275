"""Builds on three nodes with a made-up trtllm-build: each engine once, and the same bytes."""

import json
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tiny import write_checkpoint
from toolkit.cli import main
from toolkit.errors import BuildError
from toolkit.execute import build_all
from toolkit.graph.step import Graph
from toolkit.on_cluster import build_on
from toolkit.plan import make_plan
from toolkit.recipe.load import load_recipe
from toolkit.store import Store

ROOT = Path(__file__).parents[1]
TEXT = """\
name: {name}
backend: tensorrt
tensorrt_llm: 1.2.1
target: {{checkpoint: ./{model}, dtype: float16}}
speculation: {{drafter: ngram}}
engine: {{max_batch_size: {batch}, max_input_len: 32, max_seq_len: 64}}
"""


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    """Twelve engines of two models: one that takes long, eleven of the other."""
    root = tmp_path_factory.mktemp("recipes")
    write_checkpoint(root / "small")
    write_checkpoint(root / "large", intermediate_size=4096)
    for number in range(12):
        model = "large" if number == 7 else "small"
        text = TEXT.format(name=f"r{number}", model=model, batch=number + 1)
        (root / f"r{number:02}.yaml").write_text(text)
    return sorted(root.glob("*.yaml"))


def plans(recipes, store):
    return [make_plan(load_recipe(str(path)), store) for path in recipes]


def build(cluster, recipes, store):
    made = []
    address = f"ray:{cluster.address}"
    build_on(address, plans(recipes, store), store, report=made.append, log=print)
    return made


@pytest.fixture(scope="module")
def twelve(ray_cluster, recipes, tmp_path_factory):
    """What became of the twelve, and how often each was begun."""
    ray_cluster.pace(2.0)
    store = Store(tmp_path_factory.mktemp("twelve") / "store")
    return store, build(ray_cluster, recipes, store), ray_cluster.builds


def whole(store):
    entries = list(store.entries())
    assert all(store.damaged(Path(entry["path"])) == [] for entry in entries)
    assert list((store.root / ".staging").iterdir()) == []
    return entries


def test_each_engine_is_built_once_and_whole(twelve):
    store, made, builds = twelve
    engines = {entry["digest"] for entry in whole(store) if entry["kind"] == "engines"}
    assert len(engines) == 12
    assert builds == dict.fromkeys(engines, 1)
    assert len(made) == 16  # and two checkpoints, two tokenizers: what is common is made once
    assert {m.entry.cached for m in made} == {False}
    assert len({m.ran.node for m in made}) == 3


def test_it_takes_little_longer_than_the_critical_path(twelve):
    """By the times that the steps took here: from being sent to being heard of."""
    _, made, _ = twelve
    took = {m.ran.step.id: m.ran.seconds for m in made}
    graph = Graph([replace(m.ran.step, seconds=took[m.ran.step.id]) for m in made])
    makespan = max(m.ran.end for m in made)
    assert makespan <= 1.3 * graph.critical_path
    # Starting the long one last would have taken longer than that.
    assert graph.critical_path < sum(took.values()) / 2


def test_here_the_same_manifests_come_out_apart_from_times(
    twelve, ray_cluster, recipes, tmp_path, monkeypatch
):
    there, _, _ = twelve
    monkeypatch.setenv("PATH", ray_cluster.path)
    monkeypatch.setenv("FAKE_CALLS", str(ray_cluster.calls))
    here = Store(tmp_path / "store")
    build_all(plans(recipes, here), here, jobs=2)
    assert manifests(here) == manifests(there)


def manifests(store):
    """Their text with the times taken out."""
    found = {}
    for path in store.root.glob("[a-z]*/*/manifest.json"):
        document = json.loads(path.read_text())
        text = path.read_text().replace(document["made_by"]["time"], "TIME")
        text = text.replace(f'"seconds": {document["seconds"]}', '"seconds": SECONDS')
        found[path.relative_to(store.root)] = text
    assert len(found) == 16
    return found


def test_a_node_killed_in_the_middle_costs_time_only(ray_cluster, recipes, tmp_path):
    ray_cluster.pace(10.0)
    store, small = Store(tmp_path / "store"), [p for p in recipes if p.name != "r07.yaml"]
    with ray_cluster.another(gpus=4, cpus=4) as node:
        killer = threading.Thread(target=kill_when_busy, args=(ray_cluster, node))
        killer.start()
        made = build(ray_cluster, small, store)
        killer.join()
    store.prune(lambda entry: True)  # what a killed build leaves, nobody holds: it goes with this
    engines = {entry["digest"] for entry in whole(store) if entry["kind"] == "engines"}
    assert len(engines) == 11
    assert len(made) == 13
    begun = ray_cluster.builds
    assert set(begun) == engines
    assert 11 < sum(begun.values()) <= 11 + 4  # what ran there, and only that, ran twice


def kill_when_busy(cluster, node):
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and not cluster.busy(node):
        time.sleep(0.1)
    cluster.kill(node)


def command(cluster, store, *words):
    return [
        sys.executable, "-m", "toolkit.cli", *words, "--store", str(store),
        "--on", f"ray:{cluster.address}",
    ]  # fmt: skip


def test_ctrl_c_cancels_leaves_nothing_half_written_and_a_rerun_goes_on(
    ray_cluster, recipes, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    ray_cluster.pace(600.0)
    store = Store(tmp_path / "store")
    words = command(ray_cluster, store.root, "build", *map(str, recipes[:2]), "--json")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(ray_cluster.builds) == 2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.endswith("spectool: interrupted\n")  # a slow machine's nodes may be told of before
    assert sorted(entry["kind"] for entry in whole(store)) == ["checkpoints", "tokenizers"]
    ray_cluster.pace(0.0)
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)["artefacts"]
    assert [row["cached"] for row in rows] == [True, True, False, False]
    assert all("node" in row for row in rows if not row["cached"])


def wait_until(condition, seconds=90.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_wrong_recipe_is_an_error_and_runs_once(ray_cluster, recipes, tmp_path):
    ray_cluster.pace(0.0)
    with ray_cluster.failing("half"), pytest.raises(BuildError, match=r"rank0\.engine: missing"):
        build(ray_cluster, recipes[:1], Store(tmp_path / "store"))
    assert list(ray_cluster.builds.values()) == [1]


def refused(cluster, tmp_path, capsys, text, *options, on=None):
    (tmp_path / "r.yaml").write_text(text)
    write_checkpoint(tmp_path / "small")
    words = ["build", str(tmp_path / "r.yaml"), "--store", str(tmp_path / "store"), *options]
    started = time.monotonic()
    with pytest.raises(SystemExit) as ended:
        main([*words, "--on", on or f"ray:{cluster.address}"])
    said = capsys.readouterr()
    assert said.out == ""
    return ended.value.code, said.err, time.monotonic() - started


TINY = TEXT.format(name="tiny", model="small", batch=2)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("tensorrt_llm: 1.2.1", "tensorrt_llm: 1.0.0"), "needs .* tensorrt_llm 1.0.0.* has "),
        (("float16}", "float16, parallel: {tp: 4}}"), "needs .* 4 GPUs.* has 2 GPUs"),
        (("backend: tensorrt", "tensorrt: {gpu: A100}\nbackend: tensorrt"), "needs .* gpu sm_80"),
    ],
    ids=["release", "gpus", "architecture"],
)
def test_what_no_node_can_run_is_named_before_anything_runs(
    ray_cluster, tmp_path, capsys, change, sentence
):
    ray_cluster.pace(0.0)
    code, err, seconds = refused(ray_cluster, tmp_path, capsys, TINY.replace(*change))
    assert code == 2
    assert "no node can run this" in err
    assert re.search(f"engine target {sentence}", err)
    assert "Traceback" not in err
    assert not ray_cluster.builds
    assert seconds < 10


@pytest.mark.parametrize(
    ("on", "code", "sentence"),
    [
        ("ray:127.0.0.1:1", 1, "ray:127.0.0.1:1: no answer: Connection refused"),
        ("ray:nowhere.invalid:6379", 1, "ray:nowhere.invalid:6379: no answer"),
        ("ray:6379", 2, "'6379' is no HOST:PORT; expected ray"),
        ("rya", 2, "--on rya: expected ray (the cluster of this machine, or $RAY_ADDRESS)"),
        ("ray:ray://head:10001", 2, "Ray Client addresses have no node of their own"),
    ],
)
def test_an_address_that_cannot_be_is_one_sentence(
    ray_cluster, tmp_path, capsys, on, code, sentence
):
    ended, err, seconds = refused(ray_cluster, tmp_path, capsys, TINY, on=on)
    assert ended == code
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert seconds < 10


def test_jobs_are_for_this_machine(ray_cluster, tmp_path, capsys):
    code, err, _ = refused(ray_cluster, tmp_path, capsys, TINY, "--jobs", "2")
    assert (code, "--jobs 2 is for this machine" in err) == (2, True)


def test_a_node_with_another_python_gets_no_step(ray_cluster, recipes, tmp_path):
    """A label is enough: nothing is sent to it, not even a question."""
    ray_cluster.pace(0.0)
    labels = {"spectool.python": "3.8"}
    with ray_cluster.another(labels=labels, gpus=4, cpus=16) as node:
        made = build(ray_cluster, recipes[:2], Store(tmp_path / "store"))
        assert not ray_cluster.busy(node)
    assert len({m.ran.node for m in made}) <= 3


def test_help_and_building_here_import_no_ray(tmp_path):
    write_checkpoint(tmp_path / "small")
    (tmp_path / "r.yaml").write_text(TINY.replace("backend: tensorrt", "backend: cpu"))
    code = """
        import sys
        from toolkit.cli import main

        for words in (["--help"], ["plan", sys.argv[1], "--graph"], ["build", sys.argv[1]]):
            try:
                main([*words, "--store", sys.argv[2]] if words[1:] else words)
            except SystemExit as ended:
                assert ended.code in (0, None)
        print("loaded:", sorted({"ray", "fsspec"} & set(sys.modules)))
    """
    words = [sys.executable, "-c", textwrap.dedent(code), tmp_path / "r.yaml", tmp_path / "store"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.endswith("loaded: []\n")
