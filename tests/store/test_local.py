"""An entry is whole or absent, whatever happens to whoever builds it."""

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import BuildError, InputError
from toolkit.store import MANIFEST, Store, digest, new_directory, write_atomic

SPEC = {"what": "test", "size": 3}


def fill(text):
    def build(out):
        (out / "sub").mkdir()
        (out / "sub" / "a.txt").write_text(text, encoding="utf-8")

    return build


def leftovers(store):
    area = store.root / ".staging"
    return sorted(path.name for path in area.glob("*")) if area.exists() else []


def run_python(code, *argv):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, argv)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip


# Builds one entry slowly, and counts how often it really built by appending to a file.
SLOW_BUILDER = """
    import sys, time
    from pathlib import Path
    from toolkit.store import Store

    root, log, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])

    def build(out):
        with log.open("a") as file:
            file.write("x")
        (out / "half").write_text("half")
        time.sleep(seconds)
        (out / "whole").write_text("whole")

    print(Store(root).publish("things", {"a": 1}, build).cached)
"""


def test_an_entry_is_built_once_and_then_found(tmp_path):
    store = Store(tmp_path)
    first = store.publish("things", SPEC, fill("hello"))
    again = store.publish("things", SPEC, fill("never called"))
    assert (first.cached, again.cached) == (False, True)
    assert first.path == again.path == tmp_path / "things" / digest(SPEC)
    assert (first.path / "sub" / "a.txt").read_text(encoding="utf-8") == "hello"
    manifest = json.loads((first.path / MANIFEST).read_text(encoding="utf-8"))
    # sha256 of the five bytes "hello", from any other tool
    sha = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    assert manifest["files"] == {"sub/a.txt": {"bytes": 5, "sha256": sha}}
    assert manifest["spec"] == SPEC
    assert leftovers(store) == []


def test_a_failed_build_leaves_nothing(tmp_path):
    store = Store(tmp_path)

    def build(out):
        (out / "half").write_text("half", encoding="utf-8")
        raise InputError("no")

    with pytest.raises(InputError, match="no"):
        store.publish("things", SPEC, build)
    assert not store.has("things", digest(SPEC))
    assert list((tmp_path / "things").glob("*")) == []
    assert leftovers(store) == []
    assert not store.publish("things", SPEC, fill("now it works")).cached


def test_threads_that_want_one_digest_build_it_once(tmp_path):
    store, built, results = Store(tmp_path), [], []

    def build(out):
        built.append(1)
        time.sleep(0.2)
        fill("x")(out)

    threads = [
        threading.Thread(target=lambda: results.append(store.publish("things", SPEC, build)))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [1]
    assert sorted(entry.cached for entry in results) == [False] + [True] * 5
    assert len({entry.path for entry in results}) == 1


def test_processes_that_want_one_digest_build_it_once(tmp_path):
    log = tmp_path / "log"
    running = [run_python(SLOW_BUILDER, tmp_path / "store", log, 0.5) for _ in range(3)]
    outputs = [process.communicate(timeout=60) for process in running]
    assert [err for _, err in outputs] == [""] * 3
    assert sorted(out.strip() for out, _ in outputs) == ["False", "True", "True"]
    assert log.read_text(encoding="utf-8") == "x"


def test_different_digests_do_not_wait_for_each_other(tmp_path):
    store, inside = Store(tmp_path), threading.Event()

    def slow(out):
        fill("slow")(out)
        assert inside.wait(10)  # only the other build lets this one end

    thread = threading.Thread(target=store.publish, args=("things", {"n": 1}, slow))
    thread.start()
    store.publish("things", {"n": 2}, lambda out: inside.set())
    thread.join()
    assert store.has("things", digest({"n": 1}))
    assert store.has("things", digest({"n": 2}))


def test_a_killed_build_is_invisible_and_the_next_run_removes_it(tmp_path):
    store = Store(tmp_path / "store")
    log = tmp_path / "log"
    victim = run_python(SLOW_BUILDER, store.root, log, 60)
    staging = store.root / ".staging"
    deadline = time.monotonic() + 30
    while not list(staging.glob("*/half")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(victim.pid, signal.SIGKILL)
    victim.communicate()
    assert len(leftovers(store)) == 1
    assert list(store.entries()) == []

    rerun = run_python(SLOW_BUILDER, store.root, log, 0)
    out, err = rerun.communicate(timeout=60)
    assert (out.strip(), err) == ("False", "")
    assert leftovers(store) == []
    assert [entry["digest"] for entry in store.entries()] == [digest({"a": 1})]


def test_prune_removes_what_a_killed_build_left_but_not_a_build_at_work(tmp_path):
    store = Store(tmp_path)
    (tmp_path / ".staging" / "0123-dead").mkdir(parents=True)
    (tmp_path / ".staging" / "0123-dead" / "half").write_text("x", encoding="utf-8")
    seen = []

    def build(out):
        store.prune(lambda entry: True)
        seen.extend(leftovers(store))
        fill("x")(out)

    entry = store.publish("things", SPEC, build)
    assert [name.partition("-")[0] for name in seen] == [entry.digest]


class FakeFullDisk:
    """Write calls work until the limit, then fail as a full disk does."""

    def __init__(self, out):
        (out / "a").write_bytes(b"x" * 100)
        raise OSError(errno.ENOSPC, "No space left on device", str(out / "b"))


def test_a_full_disk_is_said_in_words_and_leaves_nothing(tmp_path):
    store = Store(tmp_path)
    with pytest.raises(BuildError, match=r"no space left.*--store DIR"):
        store.publish("things", SPEC, FakeFullDisk)
    assert list(store.entries()) == []
    assert leftovers(store) == []


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 256 kB; needs the right to mount."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_really_full_disk_leaves_nothing_and_the_store_works_on(tiny_disk):
    store = Store(tiny_disk)

    def large(out):
        (out / "big").write_bytes(bytes(1 << 20))

    with pytest.raises(BuildError, match="no space left"):
        store.publish("things", SPEC, large)
    assert list(store.entries()) == []
    assert leftovers(store) == []
    assert not store.publish("things", SPEC, fill("small")).cached
    with pytest.raises(BuildError, match="no space left"), new_directory(tiny_disk / "out") as out:
        large(out)
    assert not (tiny_disk / "out").exists()
    with pytest.raises(BuildError, match="no space left"):
        write_atomic(tiny_disk / "file", bytes(1 << 20))
    assert sorted(p.name for p in tiny_disk.iterdir()) == [".locks", ".staging", "things"]


def test_a_store_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(BuildError, match="Not a directory"):
        Store(tmp_path / "file" / "store").publish("things", SPEC, fill("x"))


def test_a_directory_without_a_manifest_is_no_entry_and_gives_way(tmp_path):
    store = Store(tmp_path)
    broken = store.path("things", digest(SPEC))
    broken.mkdir(parents=True)
    (broken / "old").write_text("x", encoding="utf-8")
    assert not store.publish("things", SPEC, fill("x")).cached
    assert not (broken / "old").exists()


def test_damage_is_found_file_by_file(tmp_path):
    store = Store(tmp_path)

    def build(out):
        for name in ("gone", "longer", "changed", "fine"):
            (out / name).write_text("12345", encoding="utf-8")

    path = store.publish("things", SPEC, build).path
    assert store.damaged(path) == []
    (path / "gone").unlink()
    (path / "longer").write_text("123456", encoding="utf-8")
    (path / "changed").write_text("1234x", encoding="utf-8")
    assert sorted(store.damaged(path)) == [
        "changed: content differs from its sha256",
        "gone: missing",
        "longer: 6 bytes, expected 5",
    ]


def test_prune_keeps_what_it_is_told_to(tmp_path):
    store = Store(tmp_path)
    entries = [store.publish("things", {"n": n}, fill("x")) for n in range(3)]
    removed = store.prune(lambda entry: entry["spec"]["n"] == 1)
    assert [entry["spec"]["n"] for entry in removed] != []
    assert {entry["spec"]["n"] for entry in removed} == {0, 2}
    assert [entry["digest"] for entry in store.entries()] == [entries[1].digest]


def test_a_damaged_manifest_does_not_hide_the_other_entries(tmp_path):
    store = Store(tmp_path)
    bad = store.publish("things", {"n": 1}, fill("x")).path
    good = store.publish("things", {"n": 2}, fill("x"))
    (bad / MANIFEST).write_text('{"files": ', encoding="utf-8")
    assert {entry["digest"] for entry in store.entries()} == {bad.name, good.digest}
    assert "not readable" in store.damaged(bad)[0]
    store.prune(lambda entry: not store.damaged(Path(entry["path"])))
    assert [entry["digest"] for entry in store.entries()] == [good.digest]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), json_values), st.randoms())
def test_a_digest_does_not_depend_on_the_order_of_keys(spec, random):
    keys = list(spec)
    random.shuffle(keys)
    assert digest({key: spec[key] for key in keys}) == digest(spec)


@given(st.dictionaries(st.text(max_size=5), json_values), st.text(max_size=5), json_values)
def test_a_digest_changes_with_any_value(spec, key, value):
    changed = {**spec, key: value}
    same = json.dumps(changed, sort_keys=True) == json.dumps(spec, sort_keys=True)
    assert (digest(changed) == digest(spec)) == same


def test_a_new_directory_appears_whole_or_not_at_all(tmp_path):
    final = tmp_path / "out"

    def fail():
        with new_directory(final) as staging:
            (staging / "half").write_text("x", encoding="utf-8")
            assert not final.exists()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(tmp_path.iterdir()) == []
    with new_directory(final) as staging:
        (staging / "whole").write_text("x", encoding="utf-8")
    assert [path.name for path in final.iterdir()] == ["whole"]
    with pytest.raises(InputError, match="not empty"), new_directory(final):
        pass


def test_a_new_directory_removes_what_a_killed_run_left_beside_it(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (tmp_path / f".out.partial-{gone.pid}").mkdir()
    (tmp_path / f".out.partial-{os.getppid()}").mkdir()  # somebody at work
    with new_directory(tmp_path / "out"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f".out.partial-{os.getppid()}",
        "out",
    ]


def test_write_atomic_replaces_and_cleans_up(tmp_path):
    write_atomic(tmp_path / "a" / "f.json", "one")
    write_atomic(tmp_path / "a" / "f.json", b"two")
    assert [(p.name, p.read_text(encoding="utf-8")) for p in (tmp_path / "a").iterdir()] == [
        ("f.json", "two")
    ]
