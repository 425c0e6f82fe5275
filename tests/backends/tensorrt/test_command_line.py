"""`spectool plan` and `build` for backend tensorrt, with a made-up trtllm-build on PATH."""

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests import tiny_heads as heads
from tests.engine.trtllm.golden_flags import parse
from tests.recipes_for_tests import LIMITS, write_recipe
from toolkit.store import Store

ROOT = Path(__file__).parents[3]
TREE = [[0], [1], [0, 0]]
DRAFT = "checkpoint: ./model, dtype: float32, layers: [0]"


@pytest.fixture
def recipe(tmp_path):
    return write_recipe(tmp_path, DRAFT, extra="backend: tensorrt\n")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def engines(store):
    return [entry for entry in store.entries() if entry["kind"] == "engines"]


def test_a_build_makes_both_engines_and_a_second_one_finds_them(
    spectool,
    installation,
    recipe,
    store,
):
    ran = spectool("build", recipe)
    assert (ran.code, ran.err) == (0, "")
    assert [line.split()[:2] for line in ran.out.splitlines()][-2:] == [
        ["engine", "target"],
        ["engine", "draft"],
    ]
    assert len(installation.calls) == len(engines(store)) == 2
    modes = [
        parse(call["argv"], "1.2.1").get("speculative_decoding_mode") for call in installation.calls
    ]
    assert modes == ["draft_tokens_external", None]
    assert spectool("build", recipe).out.count("cached") == 5
    assert len(installation.calls) == 2


def test_a_changed_flag_builds_again_and_only_engines(spectool, installation, recipe, store):
    spectool("build", recipe)
    again = spectool("build", recipe, "--set", "tensorrt.flags.gemm_plugin=float16")
    assert again.out.count("cached") == 3
    assert len(installation.calls) == 4
    assert parse(installation.calls[-1]["argv"], "1.2.1")["gemm_plugin"] == "float16"


@pytest.mark.parametrize("change", ["release", "tensorrt", "gpu"])
def test_engines_of_another_machine_are_never_reused(
    change,
    spectool,
    installation,
    recipe,
    store,
):
    spectool("build", recipe)
    if change == "gpu":
        installation.gpus("8.9")
    else:
        installation.install("1.2.0" if change == "release" else "1.2.1", "10.15")
    os.utime(installation.bin / "trtllm-build", ns=(1, 1))
    words = ["--set", "tensorrt_llm=1.2.0"] if change == "release" else []
    says = {
        "release": "tensorrt_llm 1.2.1 -> 1.2.0, tensorrt 10.14.1 -> 10.15 (found -> needed)",
        "tensorrt": "is not reused: tensorrt 10.14.1 -> 10.15 (found -> needed)",
        "gpu": "is not reused: gpu sm_90 -> sm_89 (found -> needed)",
    }[change]
    old = [entry["path"] for entry in engines(store)]
    for command in ("plan", "check"):
        said = spectool(command, recipe, *words).out
        assert said.count(says) == 2
        assert all(f"{path} is not reused" in said for path in old)
    assert spectool("build", recipe, "--require-cached", *words).err.count(says) == 2
    ran = spectool("build", recipe, *words)
    assert (ran.code, ran.err.count(says)) == (0, 2)
    assert len(installation.calls) == len(engines(store)) == 4
    assert "is not reused" not in spectool("plan", recipe, *words).out


def test_a_failing_build_exits_with_one_and_leaves_the_store_as_it_was(
    spectool,
    installation,
    recipe,
    store,
):
    installation.behave("RuntimeError: CUDA out of memory")
    ran = spectool("build", recipe)
    assert ran.code == 1
    assert "the GPU ran out of memory" in ran.err
    log = Path(ran.err.rpartition("log: ")[2].strip())
    assert "CUDA out of memory" in log.read_text()
    assert engines(store) == []
    assert list((store.root / ".staging").iterdir()) == []
    installation.behave("ok")
    assert spectool("build", recipe).code == 0


def test_a_hanging_build_ends_in_time(spectool, installation, recipe, store):
    installation.behave("hang")
    ran = spectool("build", recipe, "--set", "tensorrt.build_timeout_s=1.5")
    assert ran.code == 1
    assert "no end after 1.5 s" in ran.err
    assert engines(store) == []


def start(recipe, store):
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "toolkit.cli", "build", str(recipe)),
            *("--store", str(store.root), "--offline"),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_build_leaves_nothing_and_can_be_done_again(
    number,
    spectool,
    installation,
    recipe,
    store,
):
    installation.behave("hang")
    running = start(recipe, store)
    wait_until(lambda: len(installation.pids()) == 2)
    running.send_signal(number)
    running.communicate(timeout=30)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in installation.pids()))
    assert engines(store) == []
    installation.behave("ok")
    assert spectool("build", recipe).code == 0
    assert len(engines(store)) == 2
    assert list((store.root / ".staging").iterdir()) == []


def test_two_builds_at_once_build_once(installation, recipe, store):
    installation.behave("slow")
    with ThreadPoolExecutor(2) as pool:
        running = [start(recipe, store) for _ in range(2)]
        ended = list(pool.map(lambda process: process.communicate(timeout=120), running))
    assert [err for _, err in ended] == ["", ""]
    assert len(installation.calls) == 2  # one target, one draft


def test_side_by_side_each_build_has_a_gpu_of_its_own(spectool, installation, recipe):
    installation.gpus("9.0", "9.0")
    installation.behave("slow")
    assert spectool("build", recipe, "--jobs", "2").code == 0
    assert sorted(call["gpus"] for call in installation.calls) == ["0", "1"]


def test_without_trtllm_build_the_exit_code_is_three_and_nothing_is_converted(
    spectool,
    installation,
    recipe,
    store,
):
    installation.remove("trtllm-build")
    ran = spectool("build", recipe)
    assert ran.code == 3
    assert "trtllm-build is not on PATH" in ran.err
    assert list(store.entries()) == []


def test_another_release_is_refused_with_both_numbers(spectool, installation, recipe):
    installation.install("1.1.0")
    ran = spectool("build", recipe)
    assert ran.code == 2
    assert "the recipe says 1.2.1" in ran.err
    assert "is 1.1.0" in ran.err


def test_a_plan_needs_no_gpu(spectool, installation, recipe, store):
    for name in ("trtllm-build", "nvidia-smi"):
        installation.remove(name)
    ran = spectool("plan", recipe, "--json")
    assert ran.code == 0
    by_role = {
        artefact["roles"][0]: artefact
        for artefact in json.loads(ran.out)["artefacts"]
        if artefact["kind"] == "engines"
    }
    program, *argv = shlex.split(by_role["target"]["command"])
    assert program == "trtllm-build"
    assert parse(argv, "1.2.1")["checkpoint_dir"] == "checkpoints/target"
    assert by_role["target"]["digest"] is None
    notes = " ".join(by_role["target"]["notes"])
    assert "max_seq_len 64 becomes 68" in notes
    assert "engine digests are not known here: trtllm-build is not on PATH" in notes


def test_a_plan_where_the_gpu_is_knows_every_digest(spectool, installation, recipe):
    spectool("build", recipe)
    artefacts = json.loads(spectool("plan", recipe, "--json").out)["artefacts"]
    assert all(artefact["cached"] for artefact in artefacts)


def test_check_needs_no_gpu_either(spectool, installation, recipe):
    installation.remove("trtllm-build")
    ran = spectool("check", recipe)
    assert (ran.code, ran.err) == (0, "")
    assert "note: backend: 'tensorrt' cannot work here: trtllm-build is not on PATH" in ran.out


def test_a_broken_rule_is_said_with_its_line(spectool, installation, recipe):
    recipe.write_text(recipe.read_text() + "tensorrt:\n  flags: {max_beam_width: 4}\n")
    ran = spectool("plan", recipe)
    assert ran.code == 2
    assert "tensorrt.flags.max_beam_width: 4; speculative decoding has no beam search" in ran.err
    assert "(line 9)" in ran.err


HEADS = {
    "medusa": (heads.medusa, lambda: {}, "medusa_lm_head.safetensors", {"medusa_choices": TREE}),
    "eagle": (
        lambda: heads.eagle(bias=False),
        lambda: heads.eagle_config(bias=False),
        "model.safetensors",
        {"num_eagle_layers": 2, "eagle_choices": TREE},
    ),
    "redrafter": (heads.redrafter, heads.redrafter_config, "model.safetensors", {}),
}


@pytest.mark.parametrize("version", ["0.16.0", "1.2.1"])
@pytest.mark.parametrize("drafter", HEADS)
def test_heads_become_an_engine(drafter, version, spectool, installation, tmp_path, store):
    """Conversion, rules, command line and engine agree about every number."""
    installation.install(version)
    tensors, config, file, options = HEADS[drafter]
    heads.write_heads(tmp_path / "heads", tensors(), config(), file)
    path = write_recipe(tmp_path)
    words = {"drafter": drafter, "heads": {"checkpoint": "./heads"}, **options}
    path.write_text(
        f"name: tiny\nbackend: tensorrt\ntensorrt_llm: {version}\n"
        "target: {checkpoint: ./model, dtype: float16}\n"
        f"speculation: {json.dumps(words)}\n{LIMITS}"
    )
    ran = spectool("build", path)
    assert (ran.code, ran.err) == (0, "")
    (engine,) = engines(store)
    config = json.loads((Path(engine["path"]) / "config.json").read_text())
    drafted = {"medusa": 63, "eagle": 63, "redrafter": 25}[drafter]
    assert config["build_config"]["max_draft_len"] == drafted
    assert config["build_config"]["max_seq_len"] == 64 + drafted + (2 if drafter == "eagle" else 0)


def test_a_checkpoint_edited_in_the_store_is_refused(spectool, installation, recipe, store):
    installation.behave("RuntimeError: first")
    spectool("build", recipe)
    (weights, *_) = sorted(store.root.glob("checkpoints/*/rank0.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    installation.behave("ok")
    ran = spectool("build", recipe)
    assert ran.code == 2
    assert "changed after it was converted (rank0.safetensors: content differs" in ran.err


def test_a_pipeline_may_demand_that_nothing_is_built(spectool, installation, recipe):
    ran = spectool("build", recipe, "--require-cached")
    assert ran.code == 1
    assert "5 artefact(s) are not in the store" in ran.err
    assert installation.calls == []
    assert spectool("build", recipe).code == 0
    assert spectool("build", recipe, "--require-cached").code == 0


def test_a_ci_system_is_told_what_failed_and_what_was_not_reached(
    spectool, installation, recipe, tmp_path
):
    installation.behave("RuntimeError: CUDA out of memory")
    report = tmp_path / "out" / "build.xml"
    assert spectool("build", recipe, "--junit", report).code == 1
    suite = ElementTree.parse(report).getroot()
    assert {key: suite.get(key) for key in ("tests", "failures", "skipped")} == {
        "tests": "5",
        "failures": "1",
        "skipped": "1",
    }
    by_name = {(case.get("classname"), case.get("name")): case for case in suite}
    failure = by_name["engines", "target"].find("failure")
    assert "the GPU ran out of memory" in failure.get("message")
    assert by_name["engines", "draft"].find("skipped") is not None
    installation.behave("ok")
    spectool("build", recipe, "--junit", report)
    assert ElementTree.parse(report).getroot().get("failures") == "0"


def test_a_manifest_says_which_machine_an_engine_is_for(spectool, installation, recipe, store):
    spectool("build", recipe)
    checkpoints = {e["digest"] for e in store.entries() if e["kind"] == "checkpoints"}
    for entry in engines(store):
        machine = {
            name: entry["spec"][name] for name in ("tensorrt_llm", "tensorrt", "cuda", "gpu")
        }
        assert machine == {
            "tensorrt_llm": "1.2.1",
            "tensorrt": "10.14.1",
            "cuda": "12.9",
            "gpu": "sm_90",
        }
        assert set(entry["inputs"]["artefacts"]) <= checkpoints
        engine = Path(entry["path"]) / "rank0.engine"
        assert entry["files"]["rank0.engine"] == {
            "bytes": engine.stat().st_size,
            "sha256": hashlib.sha256(engine.read_bytes()).hexdigest(),
        }
