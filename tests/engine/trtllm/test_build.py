"""Building through a real program: what it is told, what it leaves, and every way it can fail."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.engine.trtllm.golden_flags import RELEASES, parse
from tests.engine.trtllm.recipes import SPECULATION, made
from toolkit.engine.trtllm.build import build_engine, engine_spec, planned_limits
from toolkit.engine.trtllm.directory import read_engine
from toolkit.engine.trtllm.machine import find_machine
from toolkit.errors import BuildError, InputError, RecipeError
from toolkit.store import Store

GOLDEN_OF = {
    "none": "engine016_draft",
    "draft_target": "engine016_dtarget",
    "ngram": "engine016_dtarget",
    "medusa": "engine016_medusa",
    "eagle": "engine016_eagle",
    "redrafter": "engine016_redrafter",
    "lookahead": "engine016_look",
}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture
def build(tmp_path, store, installation):
    def run(recipe, checkpoint_dir, role="target"):
        out = tmp_path / "out"
        build_engine(checkpoint_dir, out, recipe, role, store)
        return read_engine(out)

    return run


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("drafter", SPECULATION)
def test_every_mode_builds_with_every_release(drafter, version, build, installation, checkpoint):
    installation.install(version)
    recipe = made(drafter, version)
    engine = build(recipe, checkpoint(GOLDEN_OF[drafter]))
    planned = planned_limits(recipe, "target")
    assert engine.version == version
    assert engine.build["speculative_decoding_mode"] == planned.mode
    assert engine.build["max_seq_len"] == planned.max_seq_len
    assert engine.build["max_num_tokens"] == planned.max_num_tokens


def test_one_engine_file_a_rank(build, checkpoint):
    recipe = made(
        "eagle",
        speculation={
            "max_draft_len": 31,
            "num_eagle_layers": 2,
            "max_non_leaves_per_layer": 10,
            "eagle_choices": [[0], [0, 0]],
        },
        target={"parallel": {"tp": 2}},
    )
    engine = build(recipe, checkpoint("engine016_eagle_tp2"))
    assert engine.world_size == 2
    assert engine.mode == "eagle"


def test_the_timing_cache_stays_in_the_store_and_is_used_again(
    build, store, installation, checkpoint
):
    where = checkpoint()
    build(made("none"), where)
    cache = store.root / "timing" / "trt-10.14.1-sm_90.cache"
    assert cache.read_bytes() == b"timing"
    build(made("none"), where)
    given = parse(installation.calls[-1]["argv"], "1.2.1")
    assert given["input_timing_cache"] == str(cache)


def test_a_failing_build_says_why_and_keeps_its_log(build, installation, checkpoint):
    installation.behave("RuntimeError: CUDA out of memory. Tried to allocate 2 GiB")
    with pytest.raises(BuildError, match="the GPU ran out of memory; free the GPU") as error:
        build(made("none"), checkpoint())
    assert error.value.exit_code == 1
    log = error.value.log
    assert str(log) in str(error.value)
    assert "Tried to allocate 2 GiB" in log.read_text()
    assert log.read_text().startswith("$ ")


def test_an_unknown_failure_shows_its_last_line(build, installation, checkpoint):
    installation.behave("Segment violation in tactic 7")
    with pytest.raises(
        BuildError, match=r"exit code 1\n  last line: Segment violation in tactic 7"
    ):
        build(made("none"), checkpoint())


def test_a_build_killed_from_outside_is_explained(build, installation, checkpoint):
    installation.behave("killed")
    with pytest.raises(BuildError, match=r"ended by signal 9: the system ended it.*host memory"):
        build(made("none"), checkpoint())


def test_megabytes_of_output_are_fine(build, store, installation, checkpoint):
    installation.behave("noisy")
    build(made("none"), checkpoint())
    (log,) = (store.root / "logs").iterdir()
    assert log.stat().st_size > 5_000_000


def test_a_build_that_hangs_is_ended_with_all_its_workers(build, installation, checkpoint):
    installation.behave("hang")
    recipe = made("none", build_timeout_s=2.0)
    with pytest.raises(BuildError, match=r"no end after 2 s.*raise tensorrt.build_timeout_s"):
        build(recipe, checkpoint())
    assert_gone(installation.pids())


def test_nothing_of_a_build_outlives_a_killed_spectool(tmp_path, installation, checkpoint):
    """SIGKILL leaves no time to clean up: the guard notices and does it."""
    installation.behave("hang")
    code = (
        "import sys; from pathlib import Path\n"
        "from tests.engine.trtllm.recipes import made\n"
        "from toolkit.engine.trtllm.build import build_engine\n"
        "from toolkit.store import Store\n"
        "a, b, c = map(Path, sys.argv[1:])\n"
        "build_engine(a, b, made('none'), 'target', Store(c))\n"
    )
    arguments = [str(checkpoint()), str(tmp_path / "out"), str(tmp_path / "store")]
    root = str(Path(__file__).parents[3])
    asker = subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=root)
    try:
        wait_until(lambda: len(installation.pids()) == 2)
    finally:
        asker.send_signal(signal.SIGKILL)
        asker.wait()
    assert_gone(installation.pids())


def wait_until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def assert_gone(pids):
    def gone(pid):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]

    assert len(pids) == 2
    wait_until(lambda: all(map(gone, pids)), seconds=15)


def test_half_an_engine_is_a_failed_build(build, installation, checkpoint):
    installation.behave("half")
    with pytest.raises(BuildError, match=r"rank0\.engine: missing; world_size is 1"):
        build(made("none"), checkpoint())


def test_another_engine_than_asked_for_is_a_failed_build(build, installation, checkpoint):
    installation.behave("other")
    with pytest.raises(BuildError, match="max_seq_len is 27, expected 210"):
        build(made("draft_target"), checkpoint("engine016_dtarget"))


def test_rules_see_the_checkpoint_before_anything_runs(build, installation, checkpoint):
    with pytest.raises(RecipeError, match="a plain LlamaForCausalLM without num_medusa_heads"):
        build(made("medusa"), checkpoint("engine016_draft"))
    assert installation.calls == []


def test_a_checkpoint_edited_after_its_conversion_is_refused(build, store, installation):
    def convert(out):
        (out / "config.json").write_text("{}")
        (out / "rank0.safetensors").write_bytes(b"weights")

    entry = store.publish("checkpoints", {"x": 1}, convert)
    (entry.path / "rank0.safetensors").write_bytes(b"WEIGHTS")
    with pytest.raises(InputError, match=r"rank0\.safetensors: content differs from its sha256"):
        build(made("none"), entry.path)
    assert installation.calls == []


def test_another_release_than_the_recipes_is_refused(build, installation, checkpoint):
    installation.install("1.1.0")
    with pytest.raises(InputError, match=r"the recipe says 1\.2\.1, .* is 1\.1\.0") as error:
        build(made("none"), checkpoint())
    assert error.value.exit_code == 2
    assert installation.calls == []


def test_another_gpu_than_the_recipes_is_refused(build, checkpoint):
    with pytest.raises(InputError, match=r"for A100 \(sm_80\), this machine has sm_90"):
        build(made("none", gpu="A100"), checkpoint())


def test_the_digest_is_of_flags_versions_and_gpu_never_of_paths(installation):
    machine = find_machine()
    spec = engine_spec("c0ffee", made("draft_target"), "target", machine.spec())
    assert {
        key: spec[key] for key in ("checkpoint", "tensorrt_llm", "tensorrt", "cuda", "gpu")
    } == {
        "checkpoint": "c0ffee",
        "tensorrt_llm": "1.2.1",
        "tensorrt": "10.14.1",
        "cuda": "12.9",
        "gpu": "sm_90",
    }
    assert spec["flags"]["speculative_decoding_mode"] == "draft_tokens_external"
    assert str(installation.bin) not in json.dumps(spec)
