"""The directory that deploys a recipe: what is in it, what changes it, and its scripts at work."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from tests import tiny_heads as heads
from tests.checkpoint.drafts import layouts
from tests.commands.conftest import spectool
from tests.tiny import hf_config, write_checkpoint
from toolkit.store import Store

__all__ = ["spectool"]

EVIL = "a 'b' $(touch pwned) \"c\"; `d`"
RECIPE = {
    "name": "deploy",
    "backend": "pytorch",
    "tensorrt_llm": "1.2.1",
    "target": {"checkpoint": "./target"},
    "speculation": {"drafter": "eagle3", "max_draft_len": 3, "heads": {"checkpoint": "./heads"}},
}


@pytest.fixture
def folder(tmp_path):
    write_checkpoint(tmp_path / "target", dtype="float16")
    heads.write_heads(tmp_path / "heads", heads.eagle3(), heads.eagle3_config())
    return tmp_path


def write(folder: Path, **changes) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(json.dumps({**RECIPE, **changes}), encoding="utf-8")
    return path


def deployment(folder: Path) -> Path:
    last = json.loads((folder / "store" / "last.json").read_text(encoding="utf-8"))
    return Path(last["engines"]["target"])


def test_it_holds_everything_that_a_container_needs(spectool, folder):
    ran = spectool("build", write(folder))
    assert ran.code == 0, ran.err
    found = deployment(folder)
    assert {path.relative_to(found).as_posix() for path in found.rglob("*") if path.is_file()} == {
        "llm_args.yaml", "probe.json", "probe.py", "serve.sh", "bench.sh", "manifest.json",
        "draft/config.json", "draft/model.safetensors",
    }  # fmt: skip
    assert os.access(found / "serve.sh", os.X_OK)
    assert Store(folder / "store").damaged(found) == []
    args = yaml.safe_load((found / "llm_args.yaml").read_text(encoding="utf-8"))
    assert args["speculative_config"]["speculative_model_dir"] == "./draft"
    assert (found / args["speculative_config"]["speculative_model_dir"]).is_dir()
    assert "draft_vocab_size" in json.loads((found / "draft" / "config.json").read_text())


def test_a_second_build_changes_nothing(spectool, folder):
    recipe = write(folder)
    spectool("build", recipe)
    rows = json.loads(spectool("build", recipe, "--json").out)["artefacts"]
    assert {row["kind"]: row["cached"] for row in rows} == {
        "checkpoints": True, "tokenizers": True, "engines": True,
    }  # fmt: skip


def test_other_options_make_another_deployment_around_the_same_draft(spectool, folder):
    recipe = write(folder)
    spectool("build", recipe)
    again = ("build", recipe, "--set", "speculation.max_draft_len=5", "--json")
    rows = json.loads(spectool(*again).out)["artefacts"]
    assert {row["kind"]: row["cached"] for row in rows} == {
        "checkpoints": True, "tokenizers": True, "engines": False,
    }  # fmt: skip


def test_another_head_makes_another_deployment(spectool, folder):
    recipe = write(folder)
    spectool("build", recipe)
    first = deployment(folder)
    tensors = {**heads.eagle3()}
    tensors["norm.weight"] = tensors["norm.weight"] + 1
    heads.write_heads(folder / "heads", tensors, heads.eagle3_config())
    assert spectool("build", recipe).code == 0
    assert deployment(folder) != first


def test_layers_that_a_head_was_trained_on_reach_the_configuration(spectool, tmp_path):
    write_checkpoint(tmp_path / "target", dtype="float16")
    write_target(tmp_path)
    tensors, config = layouts.modelopt()  # reads layers 1, 3 and 4
    layouts.write(tmp_path / "heads", tensors, config)
    ran = spectool("build", write(tmp_path))
    assert ran.code == 0, ran.err
    args = yaml.safe_load((deployment(tmp_path) / "llm_args.yaml").read_text(encoding="utf-8"))
    assert args["speculative_config"]["eagle3_layers_to_capture"] == [1, 3, 4]
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [0, 3, 5]
    layouts.write(tmp_path / "heads", tensors, config)
    for command in ("check", "build"):
        old = spectool(command, write(tmp_path), "--set", "tensorrt_llm='1.0.0'")
        assert old.code == 2
        assert "cannot be told which; use 1.1 or newer" in old.err
    other = spectool("check", write(tmp_path), "--set", "speculation.eagle3_layers_to_capture=[1]")
    assert "the head was trained on layers [0, 3, 5]; remove it" in other.err


def test_layers_that_a_release_captures_anyway_need_no_key(spectool, tmp_path):
    write_checkpoint(tmp_path / "target", dtype="float16")
    write_target(
        tmp_path
    )  # 8 layers: 1, 8 // 2 - 1 = 3 and 8 - 4 = 4, which is what the head reads
    tensors, config = layouts.modelopt()
    layouts.write(tmp_path / "heads", tensors, config)
    ran = spectool("build", write(tmp_path), "--set", "tensorrt_llm='1.0.0'")
    assert ran.code == 0, ran.err


def write_target(folder: Path) -> None:
    """config.json of the target that the heads of `layouts` are for."""
    target = layouts.TARGET
    config = hf_config(
        "llama", vocab_size=target.vocab, hidden_size=target.hidden,
        num_hidden_layers=target.layers, rope_theta=target.rope_theta,
        rope_scaling=dict(target.rope_scaling or {}), max_position_embeddings=1024,
    )  # fmt: skip
    (folder / "target" / "config.json").write_text(json.dumps(config), encoding="utf-8")


def test_hub_ids_need_no_network_where_nothing_is_rewritten(spectool, tmp_path):
    ran = spectool(
        "build",
        write(
            tmp_path,
            target={"checkpoint": "org/target", "revision": "v1"},
            speculation={"drafter": "draft_target", "draft": {"checkpoint": "org/draft"}},
        ),
    )
    assert ran.code == 0, ran.err
    args = yaml.safe_load((deployment(tmp_path) / "llm_args.yaml").read_text(encoding="utf-8"))
    assert args["revision"] == "v1"
    assert args["speculative_config"]["speculative_model_dir"] == "org/draft"


def test_a_head_on_the_hub_that_cannot_be_fetched_is_a_sentence(spectool, folder):
    speculation = {"drafter": "eagle3", "heads": {"checkpoint": "org/no-such-head"}}
    ran = spectool("build", write(folder, speculation=speculation), "--offline")
    assert ran.code == 2
    assert "org/no-such-head" in ran.err
    assert "Traceback" not in ran.err


FAKE_SERVER = """\
#!/bin/sh
printf '%s\\n' "$0" "$@" > "$FAKE_LOG"
for word; do last=$word; case $previous in --config|--extra_llm_api_options) cat "$word" > "$FAKE_LOG.yaml";; esac; previous=$word; done
"""  # noqa: E501
FAKE_TENSORRT_LLM = {
    "__init__.py": "__version__ = '1.2.1'\n",
    "llmapi/__init__.py": "",
    "llmapi/llm_args.py": textwrap.dedent(
        """\
        from pydantic import BaseModel, ConfigDict


        class Strict(BaseModel):
            model_config = ConfigDict(extra="forbid")


        class DecodingBaseConfig(Strict):
            max_draft_len: int | None = None
            speculative_model: str | None = None

            @classmethod
            def from_dict(cls, data):
                if data.pop("decoding_type") != "Eagle3":
                    raise ValueError("Invalid decoding type")
                return Eagle3DecodingConfig(**data)


        class Eagle3DecodingConfig(DecodingBaseConfig):
            allow_advanced_sampling: bool = False
        """
    ),
}


@pytest.fixture
def container(tmp_path):
    """Environment in which trtllm-serve, trtllm-bench and tensorrt_llm are ours."""
    programs, packages = tmp_path / "bin", tmp_path / "site"
    programs.mkdir()
    for name in ("trtllm-serve", "trtllm-bench"):
        (programs / name).write_text(FAKE_SERVER, encoding="utf-8")
        (programs / name).chmod(0o755)
    for name, text in FAKE_TENSORRT_LLM.items():
        path = packages / "tensorrt_llm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    python = programs / "python3"
    python.symlink_to(sys.executable)
    return {
        "PATH": f"{programs}:/usr/bin:/bin",
        "PYTHONPATH": os.pathsep.join([str(packages), *[p for p in sys.path if p]]),
        "FAKE_LOG": str(tmp_path / "log"),
        "TMPDIR": str(tmp_path),
    }


def run(script: Path, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(script), *words], env=environment, cwd=script.parent.parent, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip


def test_serve_fits_the_configuration_and_listens_on_this_machine_only(
    spectool, folder, container, tmp_path
):
    spectool("build", write(folder))
    found = deployment(folder)
    ran = run(found / "serve.sh", container, "--log_level", "info")
    assert ran.returncode == 0, ran.stderr
    words = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    assert words[1:8] == [
        str(folder / "target"), "--backend", "pytorch", "--host", "127.0.0.1", "--port", "8000",
    ]  # fmt: skip
    assert words[8] == "--extra_llm_api_options"
    assert words[-2:] == ["--log_level", "info"]
    fitted = yaml.safe_load((tmp_path / "log.yaml").read_text(encoding="utf-8"))
    assert fitted["speculative_config"] == {
        "decoding_type": "Eagle3",
        "allow_advanced_sampling": True,
        "speculative_model": str(found / "draft"),
        "max_draft_len": 3,
    }


def test_serve_ends_with_the_probe_when_the_release_cannot(spectool, folder, container, tmp_path):
    speculation = {"drafter": "ngram", "max_draft_len": 3}
    spectool("build", write(folder, speculation=speculation))
    ran = run(deployment(folder) / "serve.sh", container)
    assert ran.returncode == 2
    assert "no ngram on this release" in ran.stderr
    assert not (tmp_path / "log").exists()


def test_without_tensorrt_llm_the_probe_says_where_to_run(spectool, folder, container):
    spectool("build", write(folder))
    bare = {**container, "PYTHONPATH": ""}
    ran = run(deployment(folder) / "serve.sh", bare)
    assert ran.returncode == 3
    assert "run this inside its container" in ran.stderr


def test_the_environment_replaces_model_host_and_port(spectool, folder, container, tmp_path):
    spectool("build", write(folder))
    chosen = {"SERVE_MODEL": "/m x", "SERVE_HOST": "10.0.0.1", "SERVE_PORT": "9"}
    run(deployment(folder) / "serve.sh", {**container, **chosen})
    words = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    assert words[1:8] == ["/m x", "--backend", "pytorch", "--host", "10.0.0.1", "--port", "9"]


def test_bench_measures_a_dataset(spectool, folder, container, tmp_path):
    speculation = {**RECIPE["speculation"]}
    target = {"checkpoint": "./target", "parallel": {"tp": 2}}
    spectool("build", write(folder, target=target, speculation=speculation))
    script = deployment(folder) / "bench.sh"
    assert run(script, container).returncode == 2
    ran = run(script, container, "/data set.jsonl", "--concurrency", "4")
    assert ran.returncode == 0, ran.stderr
    words = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    where = str(folder / "target")
    assert words[1:13] == [
        "--model", where, "--model_path", where, "throughput", "--backend", "pytorch",
        "--tp", "2", "--pp", "1", "--dataset",
    ]  # fmt: skip
    assert "/data set.jsonl" in words
    assert words[-2:] == ["--concurrency", "4"]


def test_a_hostile_path_stays_one_word(spectool, tmp_path, container):
    write_checkpoint(tmp_path / EVIL, dtype="float16")
    speculation = {"drafter": "none"}
    ran = spectool(
        "build", write(tmp_path, target={"checkpoint": f"./{EVIL}"}, speculation=speculation)
    )
    assert ran.code == 0, ran.err
    script = deployment(tmp_path) / "serve.sh"
    assert shlex.quote(str(tmp_path / EVIL)) in script.read_text(encoding="utf-8")
    assert run(script, container).returncode == 0
    assert (tmp_path / "log").read_text(encoding="utf-8").splitlines()[1] == str(tmp_path / EVIL)
    assert list(tmp_path.rglob("pwned")) == []


def test_no_secret_and_no_code_of_a_checkpoint_reaches_a_deployment(spectool, folder, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    spectool("build", write(folder))
    for path in deployment(folder).rglob("*"):
        if path.is_file() and path.suffix != ".safetensors":
            text = path.read_text(encoding="utf-8")
            assert "hf_secret" not in text
            assert "trust_remote_code" not in text


def test_nothing_is_converted(spectool, folder):
    ran = spectool("convert", write(folder), "-o", folder / "out")
    assert ran.code == 2
    assert "use spectool build" in ran.err


def test_a_plan_of_a_loaded_model_knows_its_digest_without_fetching(spectool, tmp_path):
    made = write(
        tmp_path, target={"checkpoint": "org/target"}, speculation={"drafter": "ngram"}
    )  # fmt: skip
    plan = json.loads(spectool("plan", made, "--json").out)
    assert [a["kind"] for a in plan["artefacts"]] == ["engines"]
    assert plan["artefacts"][0]["digest"]
    assert any("overlap scheduler is off" in note for note in plan["artefacts"][0]["notes"])


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub cache with a target's small files and a head, as a download leaves them."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))

    def repository(name: str) -> Path:
        root = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
        (root / "refs").mkdir(parents=True)
        (root / "refs" / "main").write_text(COMMIT, encoding="utf-8")
        return root / "snapshots" / COMMIT

    target = repository("org/target")
    write_checkpoint(target, dtype="float16")
    for weights in target.glob("*.safetensors"):
        weights.unlink()
    heads.write_heads(repository("org/head"), heads.eagle3(), heads.eagle3_config())
    return tmp_path


def test_a_head_from_the_hub_is_rewritten_without_the_targets_weights(spectool, hub):
    speculation = {"drafter": "eagle3", "heads": {"checkpoint": "org/head"}}
    recipe = write(hub, target={"checkpoint": "org/target"}, speculation=speculation)
    ran = spectool("build", recipe, "--json")
    assert ran.code == 0, ran.err
    built = json.loads(ran.out)
    assert set(built["tokenizers"]) == {"target"}
    assert (Path(built["engines"]["target"]) / "draft" / "model.safetensors").is_file()
    plan = json.loads(spectool("plan", recipe, "--json").out)
    assert all(artefact["cached"] for artefact in plan["artefacts"])
    checked = spectool("check", recipe)
    assert checked.code == 0, checked.err
    assert "not fetched" not in checked.out


def test_a_deployment_is_the_same_bytes_in_every_process(spectool, tmp_path):
    speculation = {
        "drafter": "eagle3", "heads": {"checkpoint": "org/head"},
        "draft_length": {"policy": "schedule", "schedule": [{"batch": 1, "draft_len": 4}]},
        "max_draft_len": 4,
    }  # fmt: skip
    recipe = write(tmp_path, speculation=speculation, pytorch={"max_concurrency": 4})
    code = (
        "import sys; from toolkit.recipe.load import load_recipe;"
        "from toolkit.engine.llmapi.deployment import texts;"
        "sys.stdout.write(repr(texts(load_recipe(sys.argv[1]))))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code, str(recipe)], env={"PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(found) == 1
