"""A plan names every artefact once, and its digests change exactly when bytes would."""

import os
import shutil
import socket

import pytest

from tests.recipes_for_tests import write_recipe
from tests.tiny import write_checkpoint
from toolkit.errors import InputError
from toolkit.plan import make_plan
from toolkit.recipe.load import bundled_recipes, load_recipe
from toolkit.store import Store

SLICE = "checkpoint: ./model, dtype: float32, layers: [0]"


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*args):
        raise AssertionError("a plan must not touch the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def digests(path, store, *overrides):
    plan = make_plan(load_recipe(str(path), overrides), store)
    return {(a.kind, a.role): a.digest for a in plan.artefacts}


def test_inputs_stand_before_what_is_made_from_them(tmp_path, store):
    plan = make_plan(load_recipe(str(write_recipe(tmp_path, SLICE))), store)
    assert [(a.kind, a.role) for a in plan.artefacts] == [
        ("checkpoints", "target"),
        ("checkpoints", "draft"),
        ("tokenizers", "target+draft"),
        ("engines", "target"),
        ("engines", "draft"),
    ]
    target, draft, _, target_engine, draft_engine = plan.artefacts
    assert target_engine.inputs == (target.digest,)
    assert draft_engine.inputs == (draft.digest,)


def test_a_plan_makes_nothing(tmp_path, store, no_network):
    make_plan(load_recipe(str(write_recipe(tmp_path, SLICE))), store)
    assert list(store.entries()) == []
    assert [path.name for path in store.root.iterdir()] == ["hashes.json"]


def test_identical_models_are_made_once(tmp_path, store):
    path = write_recipe(tmp_path, "checkpoint: ./model, dtype: float32")
    plan = make_plan(load_recipe(str(path)), store)
    assert [(a.kind, a.roles) for a in plan.artefacts] == [
        ("checkpoints", ("target", "draft")),
        ("tokenizers", ("target", "draft")),
        ("engines", ("target", "draft")),
    ]


CHECKPOINT, TOKENIZER, ENGINE = (
    (kind, "target") for kind in ("checkpoints", "tokenizers", "engines")
)


@pytest.mark.parametrize(
    ("override", "changes"),
    [
        ("target.dtype=bfloat16", {CHECKPOINT, ENGINE}),
        ("target.layers=[1]", {CHECKPOINT, ENGINE}),
        ("target.layers=[1, 0]", {CHECKPOINT, ENGINE}),
        ("target.parallel.tp=2", {CHECKPOINT, ENGINE}),
        ("target.quantization=w8a16", {CHECKPOINT, ENGINE}),
        ("engine.max_seq_len=128", {ENGINE}),
        ("engine.max_batch_size=3", {ENGINE}),
        ("name=other", set()),
        ("speculation.max_draft_len=7", set()),
        ("tune.k=1..3", set()),
        ("serve.http_port=9000", set()),
    ],
)
def test_digests_change_exactly_when_bytes_would(tmp_path, store, override, changes):
    path = write_recipe(tmp_path)
    before, after = digests(path, store), digests(path, store, override)
    assert {key for key in before if before[key] != after[key]} == changes


def test_digests_do_not_depend_on_places_and_times(tmp_path, store):
    path = write_recipe(tmp_path)
    before = digests(path, store)
    shutil.copytree(tmp_path / "model", tmp_path / "elsewhere" / "model")
    copy = shutil.copy(path, tmp_path / "elsewhere" / "r.yaml")
    os.utime(tmp_path / "model" / "model.safetensors", (1, 1))
    assert digests(copy, store) == before
    assert digests(path, Store(tmp_path / "another store")) == before


def test_other_weights_are_another_checkpoint(tmp_path, store):
    path = write_recipe(tmp_path)
    before = digests(path, store)
    shutil.rmtree(tmp_path / "model")
    write_checkpoint(tmp_path / "model", seed=1)
    after = digests(path, store)
    assert before[CHECKPOINT] != after[CHECKPOINT]
    assert before[ENGINE] != after[ENGINE]


def test_a_hub_model_never_seen_has_no_digest_yet(tmp_path, store, no_network, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    path = write_recipe(tmp_path)
    override = "target.checkpoint=some-org/some-model-that-nobody-fetched"
    plan = make_plan(load_recipe(str(path), [override]), store)
    assert not plan.complete
    assert [(a.kind, a.digest, a.cached) for a in plan.artefacts] == [
        ("checkpoints", None, False), ("tokenizers", None, False), ("engines", None, False),
    ]  # fmt: skip
    commit = "0123456789abcdef0123456789abcdef01234567"
    pinned = make_plan(load_recipe(str(path), [override, f"target.revision={commit!r}"]), store)
    assert pinned.complete


def test_missing_checkpoints_are_named_together(tmp_path, store):
    path = write_recipe(tmp_path, "checkpoint: ./no-draft")
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(InputError) as raised:
        make_plan(load_recipe(str(path)), store)
    assert str(tmp_path / "model") in str(raised.value)
    assert str(tmp_path / "no-draft") in str(raised.value)


def test_commands_carry_everything_that_changes_bytes(tmp_path, store):
    path = write_recipe(tmp_path, SLICE)
    plan = make_plan(load_recipe(str(path), ["target.parallel={tp: 2, pp: 1}"]), store)
    model = tmp_path / "model"
    assert [a.command for a in plan.artefacts][:3] == [
        f"spectool convert {model} -o checkpoints/target --dtype float32 --tp 2 --pp 1",
        f"spectool convert {model} -o checkpoints/draft --dtype float32 --tp 1 --pp 1 --layers 0",
        f"spectool convert {model} -o tokenizers/target --tokenizer-only",
    ]


@pytest.mark.parametrize("name", sorted(bundled_recipes()))
def test_every_bundled_recipe_can_be_planned_without_a_network(name, store, no_network):
    recipe = load_recipe(name)
    plan = make_plan(recipe, store)
    kinds = {a.kind for a in plan.artefacts}
    if recipe.backend == "pytorch":  # nothing is converted, and only a head is rewritten
        assert kinds - {"checkpoints"} == {"engines"}
        return
    assert kinds == {"checkpoints", "tokenizers", "engines"}
    command = plan.to_json()["artefacts"][0]["command"]
    assert command.startswith(("spectool convert ", "convert "))  # heads have no command alone
