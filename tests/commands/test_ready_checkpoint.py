"""A checkpoint that is in TensorRT-LLM's layout already, from the recipe to text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.tiny import write_checkpoint
from toolkit.backends.runtime import open_runtime
from toolkit.execute import build
from toolkit.plan import make_plan
from toolkit.recipe.load import dump_recipe, load_recipe
from toolkit.speculation.interfaces import Step
from toolkit.store import Store

LIMITS = {"max_batch_size": 2, "max_input_len": 32, "max_seq_len": 64}


def recipe(folder: Path, name: str = "recipe", **target) -> Path:
    data = {
        "name": name,
        "target": {"dtype": "float32", **target},
        "speculation": {"drafter": "ngram"},
        "engine": LIMITS,
    }
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(data))
    return path


@pytest.fixture
def folder(tmp_path, spectool) -> Path:
    """`model`, as Hugging Face has it, and `ready`, the same over two ranks."""
    write_checkpoint(tmp_path / "model")
    ran = spectool("convert", tmp_path / "model", "-o", tmp_path / "ready", "--dtype", "float32",
                   "--tp", 2)  # fmt: skip
    assert ran.code == 0
    return tmp_path


def ready(folder: Path, **target) -> Path:
    target = {"checkpoint": "./ready", "tokenizer": "./model", "parallel": {"tp": 2}, **target}
    return recipe(folder, "ready", **target)


def logits(built) -> np.ndarray:
    runtime = open_runtime(built)
    seq = runtime.target.open()
    tokens = np.asarray(runtime.tokenizer.encode("the an in"), np.int64)
    (output,) = runtime.target.forward([Step(seq, tokens, rows=len(tokens))])
    return np.array(output.logits)


def test_it_answers_as_the_weights_that_it_was_made_from(folder, spectool):
    both = [recipe(folder, "hf", checkpoint="./model"), ready(folder)]
    said = []
    for path in both:
        assert spectool("build", path).code == 0
        words = ("--prompt", "the an", "--max-tokens", 12, "--json")
        said.append(json.loads(spectool("generate", path, *words).out)["text"])
    assert said[0] == said[1] != ""
    store = Store(folder / "store")
    theirs, ours = (logits(build(make_plan(load_recipe(str(path)), store), store)) for path in both)
    np.testing.assert_array_equal(theirs, ours)


def test_the_store_has_a_copy_of_its_own(folder, spectool):
    ran = json.loads(spectool("build", ready(folder), "--json").out)
    checkpoint = next(a for a in ran["artefacts"] if a["kind"] == "checkpoints")
    for file in ("config.json", "rank0.safetensors", "rank1.safetensors"):
        mine, theirs = Path(checkpoint["path"]) / file, folder / "ready" / file
        assert mine.read_bytes() == theirs.read_bytes()
        assert not mine.samefile(theirs)
        assert theirs.stat().st_nlink == 1


def test_a_draft_may_be_one_too(folder, spectool):
    path = recipe(folder, checkpoint="./model")
    data = json.loads(path.read_text())
    data["speculation"] = {
        "drafter": "draft_target",
        "draft": {"checkpoint": "./ready", "tokenizer": "./model", "dtype": "float32",
                  "parallel": {"tp": 2}},
    }  # fmt: skip
    path.write_text(json.dumps(data))
    assert spectool("check", path).code == 0
    assert spectool("build", path).code == 0
    ran = spectool("generate", path, "--prompt", "the", "--max-tokens", 6, "--json")
    assert ran.code == 0


def test_check_reads_every_rank(folder, spectool):
    ran = json.loads(spectool("check", ready(folder), "--json").out)
    assert (ran["problems"], ran["models"]["target"]["mapping"]["tp_size"]) == ([], 2)
    (folder / "ready" / "rank1.safetensors").unlink()
    ran = spectool("check", ready(folder, dtype="float16"))
    assert ran.code == 2
    assert "dtype is float32, the recipe's is float16; set dtype: float32" in ran.err
    assert "rank1.safetensors: missing; mapping.world_size is 2" in ran.err


def test_a_build_refuses_what_a_check_refuses(folder, spectool):
    ran = spectool("build", ready(folder, parallel={"tp": 1}))
    assert ran.code == 2
    assert "mapping.tp_size is 2, the recipe's parallel.tp is 1; set parallel.tp: 2" in ran.err
    kinds = {entry["kind"] for entry in json.loads(spectool("store", "ls", "--json").out)}
    assert kinds <= {"tokenizers"}


@pytest.mark.parametrize("command", ["check", "plan", "build"])
def test_without_a_tokenizer_the_recipe_is_told_to_name_one(folder, spectool, command):
    ran = spectool(command, ready(folder, tokenizer=None))
    assert ran.code == 2
    assert "has no tokenizer; add tokenizer: with the directory or hub id" in ran.err


def test_the_plan_names_what_is_copied_and_whose_tokenizer_it_is(folder, spectool):
    plan = json.loads(spectool("plan", ready(folder), "--json").out)
    assert [artefact["command"] for artefact in plan["artefacts"]][:2] == [
        f"spectool convert {folder / 'ready'} -o checkpoints/target --dtype float32 --tp 2 --pp 1",
        f"spectool convert {folder / 'model'} -o tokenizers/target --tokenizer-only",
    ]


def digests(folder: Path, path: Path) -> dict[str, str | None]:
    plan = make_plan(load_recipe(str(path)), Store(folder / "store"))
    return {artefact.kind: artefact.digest for artefact in plan.artefacts}


def test_digests_follow_content(folder):
    first = digests(folder, ready(folder))
    (folder / "ready").rename(folder / "moved")
    assert digests(folder, ready(folder, checkpoint="./moved")) == first
    (folder / "model" / "tokenizer_config.json").write_text("{}")
    after = digests(folder, ready(folder, checkpoint="./moved"))
    assert {kind for kind in first if first[kind] != after[kind]} == {"tokenizers"}
    config = folder / "moved" / "config.json"
    config.write_text(config.read_text() + "\n")
    after = digests(folder, ready(folder, checkpoint="./moved"))
    assert {kind for kind in first if first[kind] != after[kind]} == set(first)


def test_a_tokenizer_of_another_place_leaves_digests_of_weights_alone(folder):
    plain = digests(folder, recipe(folder, checkpoint="./model"))
    named = digests(folder, recipe(folder, checkpoint="./model", tokenizer="./model"))
    assert plain["checkpoints"] == named["checkpoints"]
    assert plain["engines"] == named["engines"]


def test_a_recipe_with_a_tokenizer_loads_back(folder):
    loaded = load_recipe(str(ready(folder)))
    (folder / "again.yaml").write_text(dump_recipe(loaded))
    assert load_recipe(str(folder / "again.yaml")) == loaded
    assert loaded.target.tokenizer == str(folder / "model")


def test_convert_copies_it_and_writes_only_a_tokenizer(folder, spectool):
    out = folder / "out"
    words = ("--dtype", "float32", "--tp", 2)
    assert spectool("convert", folder / "ready", "-o", out, *words).code == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json", "rank0.safetensors", "rank1.safetensors",
    ]  # fmt: skip
    (folder / "model" / "model.safetensors").unlink()
    ran = spectool("convert", folder / "model", "-o", folder / "tokens", "--tokenizer-only")
    assert ran.code == 0
    assert (folder / "tokens" / "tokenizer.json").is_file()


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_build_fetches_the_tokenizer_alone(folder, spectool, monkeypatch):
    import huggingface_hub
    from huggingface_hub import constants

    asked = []
    real = huggingface_hub.snapshot_download
    home = folder / "hub" / "models--org--tokenizer"

    def from_elsewhere(repository, **options):
        if not options.get("local_files_only"):
            asked.append(options["allow_patterns"])
            (home / "refs").mkdir(parents=True)
            (home / "refs" / "main").write_text(COMMIT)
            (home / "snapshots" / COMMIT).mkdir(parents=True)
            for file in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(folder / "model" / file, home / "snapshots" / COMMIT)
        return real(repository, **{**options, "local_files_only": True})

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", from_elsewhere)
    monkeypatch.delenv("SPECTOOL_OFFLINE")
    path = ready(folder, tokenizer="org/tokenizer")
    assert digests(folder, path)["tokenizers"] is None
    assert spectool("check", path).code == 0
    assert asked == []
    assert spectool("build", path).code == 0
    assert len(asked) == 1
    assert not any("safetensors" in pattern for pattern in asked[0])
    assert digests(folder, path)["tokenizers"] is not None


def quantized(folder: Path, algorithm: str) -> None:
    """Packed matrices with scales, as ModelOpt leaves them."""
    for rank in (0, 1):
        path = folder / "ready" / f"rank{rank}.safetensors"
        tensors = load_file(path)
        for name in [n for n in tensors if n.endswith(("qkv.weight", "proj.weight"))]:
            rows = tensors[name].shape[0]
            tensors[name] = np.zeros((rows, tensors[name].shape[1] // 2), np.int8)
            stem = name.removesuffix("weight")
            tensors[f"{stem}weights_scaling_factor"] = np.zeros((rows, 1), np.float32)
        save_file(tensors, path)
    config = json.loads((folder / "ready" / "config.json").read_text())
    config["quantization"]["quant_algo"] = algorithm
    (folder / "ready" / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("algorithm", "word"), [("W4A16_AWQ", "awq"), ("NVFP4", "nvfp4"), ("W8A16", "w8a16")]
)
def test_backend_cpu_refuses_quantised_weights_in_words(folder, spectool, algorithm, word):
    quantized(folder, algorithm)
    for command in ("check", "build"):
        ran = spectool(command, ready(folder, quantization=word))
        assert ran.code == 2
        assert "backend cpu" in ran.err
        assert ("quantised already" in ran.err) == (word == "w8a16" or command == "check")


@pytest.mark.parametrize(("algorithm", "word"), [("W4A16_AWQ", "awq"), ("NVFP4", "nvfp4")])
def test_backend_tensorrt_plans_and_checks_quantised_weights(folder, spectool, algorithm, word):
    quantized(folder, algorithm)
    path = ready(folder, quantization=word)
    tensorrt = ("--set", "backend=tensorrt")
    plan = json.loads(spectool("plan", path, "--json", *tensorrt).out)
    commands = [artefact["command"] for artefact in plan["artefacts"]]
    assert commands[0].startswith(f"spectool convert {folder / 'ready'} -o checkpoints/target")
    assert commands[-1].startswith("trtllm-build --checkpoint_dir checkpoints/target")
    assert "ModelOpt" not in json.dumps([artefact["notes"] for artefact in plan["artefacts"]])
    ran = json.loads(spectool("check", path, "--json", "--gpu", "h100", *tensorrt).out)
    assert ran["problems"] == []
    # One rank's own tensors, as they lie in its file (its header is smaller than 8 KiB).
    size = (folder / "ready" / "rank0.safetensors").stat().st_size
    assert size - 8192 < ran["memory"]["engines"][0]["weights_bytes"] < size


def test_who_is_sent_to_modelopt_learns_how_to_use_the_result(folder, spectool):
    path = recipe(folder, checkpoint="./model", quantization="awq")
    ran = spectool("check", path, "--set", "backend=tensorrt")
    assert ran.code == 2
    assert "--output_dir DIR; then, in the recipe, checkpoint: DIR, tokenizer: " in ran.err
    assert f"tokenizer: {folder / 'model'}, quantization: awq" in ran.err


def test_backends_and_servers_that_load_hugging_faces_weights_refuse_it(folder, spectool):
    path = ready(folder)
    ran = spectool("plan", path, "--set", "backend=pytorch")
    assert ran.code == 2
    assert "reads Hugging Face checkpoints only" in ran.err
    assert "target.tokenizer: the PyTorch backend loads the tokenizer that lies" in ran.err
    ran = spectool("export", path, "--to", "vllm")
    assert ran.code == 2
    assert "is a TensorRT-LLM checkpoint; other servers" in ran.err
