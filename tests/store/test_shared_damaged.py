"""What is damaged, here or in the store, is refused and never handed on."""

import json

import pytest

from tests.store.conftest import content, filler, key, never, objects, spec
from toolkit.errors import RunError
from toolkit.store import open_store
from toolkit.store.shared_manifest import DamagedError, manifest_name

pytestmark = pytest.mark.usefixtures("small_parts")


def stored(store, ending):
    return next(name for name in objects(store) if name.endswith(ending))


@pytest.mark.parametrize(
    ("place", "harm"), [("s3", "truncated"), ("directory", "changed"), ("directory", "missing")]
)
def test_damage_in_the_store_is_refused_found_removed_and_repaired(request, machine, place, harm):
    url = request.getfixturevalue(place)
    first, second = machine(url), machine(url)
    first.publish("things", spec(), filler())
    victim, place = stored(first, "large file+.bin/00001"), first.remote.place
    data = place.read(victim)
    if harm == "missing":
        place.delete(victim)
    else:
        place.put(victim, data[:400] if harm == "truncated" else b"x" + data[1:])
    with pytest.raises(DamagedError, match=r"large file\+\.bin.*\n.*prune --damaged"):
        second.publish("things", spec(), never)
    assert not second.here("things", key())
    assert list(second.entries()) == []
    (entry,) = second.remote.entries()
    (problem,) = second.remote.problems(entry)
    assert "large file+.bin" in problem
    second.remote.prune(lambda e: not second.remote.problems(e), grace_s=0)
    assert list(second.remote.entries()) == []
    assert objects(second) == []
    first.publish("things", spec(), never)
    second.publish("things", spec(), never)
    assert content(second) == content(first)


@pytest.mark.parametrize("text", [b"", b'{"kind": "thi', b"[]", b"\xff"])
def test_a_broken_manifest_is_damage_and_hides_nothing_else(directory, machine, text):
    first, second = machine(directory), machine(directory)
    for number in (0, 1):
        first.publish("things", spec(number), filler())
    first.remote.place.put(manifest_name("things", key(0)), text)
    with pytest.raises(DamagedError, match="cut short or overwritten"):
        second.publish("things", spec(0), never)
    assert second.publish("things", spec(1), never).cached
    entries = {entry["digest"]: entry for entry in second.remote.entries()}
    assert set(entries) == {key(0), key(1)}
    assert "cut short" in second.remote.problems(entries[key(0)])[0]
    second.remote.prune(lambda entry: entry["digest"] == key(1), grace_s=0)
    assert second.remote.problems(entries[key(1)]) == []


def test_a_damaged_local_entry_is_not_shared(directory, machine):
    store = machine(directory)
    made = open_store(str(store.root)).publish("things", spec(), filler())
    (made.path / "small.json").write_bytes(b"edited")
    with pytest.raises(RunError, match="damaged, so it is not shared"):
        store.push("things", key())
    assert not store.remote.has("things", key())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m["files"].update({"../../../evil": m["files"]["empty"]}), "does not stay"),
        (lambda m: m["files"].update({"/evil": m["files"]["empty"]}), "does not stay"),
        (lambda m: m["files"].update({"a/./b": m["files"]["empty"]}), "does not stay"),
        (lambda m: m["files"].update({"a\\b": m["files"]["empty"]}), "does not stay"),
        (lambda m: m["files"].update({"manifest.json": m["files"]["empty"]}), "does not stay"),
        (lambda m: m["files"].update({"x": {"bytes": -1, "sha256": "0"}}), "no size or no sha256"),
        (lambda m: m["files"].update({"x": None}), "no size or no sha256"),
        (lambda m: m.update(files=[]), "without files"),
        (lambda m: m.update(upload="../other"), "32 hex digits"),
        (lambda m: m.update(part_bytes=0), "'part_bytes'"),
        (lambda m: m.update(part_bytes=1 << 40), "'part_bytes'"),
        (lambda m: m.update(spec={"kind": "things", "number": 7}), "does not have this digest"),
        (lambda m: m.update(digest=key(7)), "another artefact's"),
    ],
)
def test_a_hostile_manifest_is_refused_before_anything_is_written(machine, tmp_path, change, says):
    url = f"file://{tmp_path}/mount"
    first, second = machine(url), machine(url)
    first.publish("things", spec(), filler())
    manifest = json.loads(first.remote.manifest("things", key()).raw)
    change(manifest)
    first.remote.place.put(manifest_name("things", key()), json.dumps(manifest).encode())
    with pytest.raises(DamagedError, match=says):
        second.pull("things", key())
    assert not second.root.exists()
    assert not list(tmp_path.rglob("evil*"))
