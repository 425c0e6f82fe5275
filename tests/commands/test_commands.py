"""What the commands say and write when all is well."""

import json
from pathlib import Path

import pytest
import yaml

from tests.recipes_for_tests import write_recipe
from toolkit.recipe.load import bundled_recipes, load_recipe
from toolkit.registry import DRAFTERS
from toolkit.store import describe_files

SLICE = "checkpoint: ./model, dtype: float32, layers: [0]"


def test_recipes_lists_names_with_what_they_are(spectool):
    ran = spectool("recipes")
    assert ran.code == 0
    for name in bundled_recipes():
        assert f"{name} " in ran.out
    listed = json.loads(spectool("recipes", "--json").out)
    assert {item["name"] for item in listed} == set(bundled_recipes())
    assert all(item["about"] for item in listed)


@pytest.mark.parametrize("name", sorted(bundled_recipes()))
def test_a_copied_recipe_means_the_same_anywhere(spectool, tmp_path, name):
    copy = tmp_path / "elsewhere" / "mine.yaml"
    assert spectool("recipes", "--copy", name, copy).code == 0
    assert load_recipe(str(copy)) == load_recipe(name)
    again = spectool("recipes", "--copy", name, copy)
    assert again.code == 2
    assert "exists already" in again.err


def test_a_copy_into_a_directory_keeps_its_name(spectool, tmp_path):
    assert spectool("recipes", "--copy", "smollm2/135m_ngram", tmp_path).code == 0
    assert (tmp_path / "135m_ngram.yaml").is_file()


def test_a_copy_of_nothing_has_a_suggestion(spectool, tmp_path):
    ran = spectool("recipes", "--copy", "smollm2/135m_ngrm", tmp_path / "x.yaml")
    assert ran.code == 2
    assert "did you mean 'smollm2/135m_ngram'?" in ran.err


def test_init_writes_a_recipe_that_loads_and_shows_every_section(spectool, tmp_path):
    path = tmp_path / "recipe.yaml"
    assert spectool("init", path).code == 0
    recipe = load_recipe(str(path))
    shown = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert set(shown) == set(type(recipe).model_fields) - {"tensorrt_llm", "tensorrt", "pytorch"}
    again = spectool("init", path)
    assert (again.code, again.out) == (2, "")


def test_schema_offers_each_drafter_and_accepts_what_loads(spectool):
    schema = json.loads(spectool("schema").out)
    inherited, *named = schema["properties"]["speculation"]["oneOf"]
    assert inherited == {"type": "object", "not": {"required": ["drafter"]}}
    choices = [choice["$ref"].rpartition("/")[2] for choice in named]
    found = {schema["$defs"][name]["properties"]["drafter"]["const"] for name in choices}
    assert found == set(DRAFTERS)
    ranges = schema["$defs"]["Tune"]["properties"]["k"]
    assert {kind["type"] for kind in ranges["anyOf"]} == {"integer", "string", "array"}


def test_check_says_what_the_models_are(spectool, tmp_path):
    ran = spectool("check", write_recipe(tmp_path, SLICE))
    assert (ran.code, ran.err) == (0, "")
    rows = [line.split() for line in ran.out.splitlines()]
    assert ["target", "Llama", "2", "64", "4/2", "250", "float32"] in rows
    assert ["draft", "Llama", "1", "64", "4/2", "250", "float32"] in rows
    assert ran.out.endswith("no problems found\n")


def test_check_finds_everything_at_once(spectool, tmp_path):
    path = write_recipe(
        tmp_path,
        "checkpoint: ./model, layers: [7], parallel: {tp: 3}",
        "tune: {batch: [1, 9], max_tokens: 64, prompts: {mine: missing.jsonl}}\n",
    )
    ran = spectool(
        "check", path, "--json", "--set", "engine.max_seq_len=512", "--set", "target.dtype=float16"
    )
    assert ran.code == 2
    report = json.loads(ran.out)
    assert report["ok"] is False
    starts = [
        "target: engine.max_seq_len: 512 is above the model's max_position_embeddings (256)",
        "draft: parallel.tp 3 does not divide num_attention_heads 4",
        "draft: layers: [7] not in this model",
        "tune.prompts: domain 'mine': ",
        "tune.batch: 9 is above engine.max_batch_size (2)",
    ]
    for start in starts:
        assert any(problem.startswith(start) for problem in report["problems"]), start


def test_check_notes_draft_lengths_that_a_deployment_never_drafts(spectool, tmp_path):
    ran = spectool("check", write_recipe(tmp_path), "--set", "tune.k=1..9")
    assert ran.code == 0
    assert "note: tune.k: goes up to 9" in ran.out


def test_a_recipe_problem_is_json_too(spectool, tmp_path):
    ran = spectool("check", write_recipe(tmp_path), "--set", "tune.k=0", "--json")
    assert ran.code == 2
    report = json.loads(ran.out)
    assert report["problems"] == ["tune.k[0]: must be at least 1, got 0 (--set)"]


def test_plan_build_store_agree(spectool, tmp_path):
    path = write_recipe(tmp_path, SLICE)
    plan = json.loads(spectool("plan", path, "--json").out)
    dry = json.loads(spectool("build", path, "--dry-run", "--json").out)
    assert plan == dry
    assert [artefact["cached"] for artefact in plan["artefacts"]] == [False] * 5
    assert json.loads(spectool("store", "ls", "--json").out) == []

    ran = spectool("build", path)
    assert (ran.code, ran.err) == (0, "")
    assert [line.split()[:3] for line in ran.out.splitlines()] == [
        ["checkpoint", "target", "built"],
        ["checkpoint", "draft", "built"],
        ["tokenizer", "target+draft", "built"],
        ["engine", "target", "built"],
        ["engine", "draft", "built"],
    ]
    built = json.loads(spectool("build", path, "--json").out)
    wanted = [artefact["digest"] for artefact in plan["artefacts"]]
    assert [artefact["digest"] for artefact in built["artefacts"]] == wanted
    assert {entry["digest"] for entry in json.loads(spectool("store", "ls", "--json").out)} == set(
        wanted
    )
    assert "steps:" not in spectool("plan", path).out  # nothing is left to do


def test_store_finds_damage_and_prunes_it(spectool, tmp_path):
    path = write_recipe(tmp_path)
    spectool("build", path)
    assert spectool("store", "verify").out == "3 of 3 artefact(s) intact\n"
    entries = json.loads(spectool("store", "ls", "--json").out)
    engine = next(entry for entry in entries if entry["kind"] == "engines")
    with (Path(engine["path"]) / "model.bin").open("r+b") as file:
        file.write(b"\xff\x00\xff")
    ran = spectool("store", "verify")
    assert ran.code == 1
    assert "model.bin: content differs from its sha256" in ran.out
    assert "store prune --damaged" in ran.err
    would = spectool("store", "prune", "--damaged", "--dry-run")
    assert engine["digest"] in would.out
    assert spectool("store", "verify").code == 1
    spectool("store", "prune", "--damaged")
    assert spectool("store", "verify").out == "2 of 2 artefact(s) intact\n"
    again = json.loads(spectool("build", path, "--json").out)["artefacts"]
    assert [artefact["cached"] for artefact in again] == [True, True, False]


def test_prune_keeps_what_a_recipe_needs(spectool, tmp_path):
    path = write_recipe(tmp_path, SLICE)
    spectool("build", path)
    plain = tmp_path / "plain.yaml"
    plain.write_text(
        path.read_text(encoding="utf-8").replace("layers: [0]", "layers: [1]"), encoding="utf-8"
    )
    ran = json.loads(spectool("store", "prune", "--keep", plain, "--json").out)
    assert sorted(entry["kind"] for entry in ran["removed"]) == ["checkpoints", "engines"]
    assert "0 artefact(s)" in spectool("store", "prune", "--older-than", "1").out
    source = tmp_path / "store" / "sources" / "x" / "model.gguf"
    source.parent.mkdir(parents=True)
    source.write_bytes(bytes(2000))
    assert "3 artefact(s)" in spectool("store", "prune", "--all").out
    assert source.exists()
    assert "2.0 kB of downloads" in spectool("store", "prune", "--sources", "--dry-run").out
    assert source.exists()
    spectool("store", "prune", "--sources")
    assert not source.exists()
    assert "0 artefact(s)" in spectool("store", "ls").out


def test_prune_without_a_rule_removes_leftovers_only(spectool, tmp_path):
    spectool("build", write_recipe(tmp_path))
    leftover = tmp_path / "store" / ".staging" / "0123-x"
    leftover.mkdir()
    ran = spectool("store", "prune")
    assert ran.out.startswith("0 artefact(s)")
    assert not leftover.exists()
    assert spectool("store", "verify").out == "3 of 3 artefact(s) intact\n"


def test_convert_writes_a_checkpoint_or_a_tokenizer_where_it_is_told(spectool, tmp_path):
    write_recipe(tmp_path)
    out = tmp_path / "ckpt"
    ran = spectool("convert", tmp_path / "model", "-o", out, "--dtype", "float16", "--tp", "2")
    assert (ran.code, ran.out) == (0, f"{out}\n")
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert (config["dtype"], config["mapping"]["tp_size"]) == ("float16", 2)
    assert (out / "rank1.safetensors").is_file()
    ran = spectool("convert", tmp_path / "model", "-o", tmp_path / "tok", "--tokenizer-only")
    assert ran.code == 0
    assert (tmp_path / "tok" / "tokenizer.json").is_file()


def test_a_planned_command_makes_the_planned_bytes(spectool, tmp_path, monkeypatch):
    path = write_recipe(tmp_path, SLICE)
    plan = json.loads(spectool("plan", path, "--json").out)["artefacts"]
    spectool("build", path)
    monkeypatch.chdir(tmp_path)
    for artefact in plan[:3]:
        words = artefact["command"].split()
        assert words[0] == "spectool"
        assert spectool(*words[1:]).code == 0
        built = describe_files(Path(artefact["path"]))
        built.pop("manifest.json")
        assert describe_files(tmp_path / words[words.index("-o") + 1]) == built


def test_doctor_names_what_works(spectool):
    ran = spectool("doctor", "--json")
    assert ran.code == 0
    found = json.loads(ran.out)
    assert found["backends"]["cpu"] == {"works": True, "reason": None}
    assert found["extras"]["cpu"]["packages"]["openvino"] is not None
    assert "backend cpu" in spectool("doctor").out


def test_doctor_says_why_nothing_works(spectool, monkeypatch):
    monkeypatch.setattr("toolkit.backends.cpu.backend.openvino_version", lambda: None)
    ran = spectool("doctor")
    assert ran.code == 3
    assert "pip install 'spectool[cpu]'" in ran.out


def test_an_engine_of_another_openvino_is_named_and_not_reused(spectool, tmp_path, monkeypatch):
    path = write_recipe(tmp_path)
    spectool("build", path)
    entries = json.loads(spectool("store", "ls", "--json").out)
    old = next(entry for entry in entries if entry["kind"] == "engines")
    monkeypatch.setattr("toolkit.engine.cpu.openvino_version", lambda: "2031.1.0")
    says = f"{old['path']} is not reused: openvino {old['spec']['openvino']} -> 2031.1.0"
    for command in ("plan", "check"):
        assert says in spectool(command, path).out
    plan = json.loads(spectool("plan", path, "--json").out)
    assert plan["artefacts"][-1]["near_misses"] == [f"{says} (found -> needed)"]
    built = spectool("build", path)
    assert f"note: target engine: {says}" in built.err
    assert built.out.count("built in") == 1
    assert says not in spectool("check", path).out  # there is one for this machine now


def test_a_check_reads_no_weights_to_look_for_engines(spectool, tmp_path, monkeypatch):
    path = write_recipe(tmp_path)
    spectool("build", path)

    def refuse(*args):
        raise AssertionError("hashed")

    monkeypatch.setattr("toolkit.checkpoint.hashes.file_sha256", refuse)
    (tmp_path / "store" / "hashes.json").unlink()
    assert spectool("check", path).code == 0
