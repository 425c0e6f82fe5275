"""Whoever is killed or pruned in the middle loses nothing, and the next one goes on."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.store.conftest import content, filler, key, never, objects, spec
from tests.store.network import Network, wait_until
from toolkit.errors import BuildError, RunError
from toolkit.store import open_store
from toolkit.store.shared_manifest import manifest_name

pytestmark = pytest.mark.usefixtures("small_parts")


PUSHER = """
    import sys
    from pathlib import Path
    from toolkit.store import shared_manifest
    from toolkit.store.shared import SharedStore

    shared_manifest.PART_BYTES = 1000
    SharedStore(sys.argv[1], Path(sys.argv[2])).push("things", sys.argv[3])
"""


def test_a_killed_push_shows_nothing_and_the_next_one_continues_it(s3, s3_port, machine, network):
    store = machine(s3)
    open_store(str(store.root)).publish("things", spec(), filler(count=2500))  # 7 + 1 + 1 objects
    # Of its own, for what a killed process has sent may arrive after its end.
    victims = Network(s3_port)
    reached, killed = threading.Event(), threading.Event()

    def stall(method, path):
        if method == "PUT" and path.endswith("bin/00004"):
            reached.set()
            killed.wait(60)
            return "drop"
        return None

    victims.rule = stall
    code = [sys.executable, "-c", textwrap.dedent(PUSHER), s3, str(store.root), key()]
    environment = {**os.environ, "AWS_ENDPOINT_URL": victims.url}
    victim = subprocess.Popen(code, cwd=Path(__file__).parents[2], env=environment)
    assert reached.wait(60)
    # The four before it are there: a part is sent only when a worker is free.
    wait_until(lambda: len([n for n in objects(store) if "large" in n]) >= 4)
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    killed.set()
    victims.drain()
    there = set(objects(store))
    assert not store.remote.has("things", key())
    network.seen.clear()
    assert store.push("things", key())
    assert len(objects(store)) == 10
    assert network.puts("/objects/") == 10 - len(there)
    assert machine(s3).pull("things", key())


def test_a_pull_continues_where_it_was_stopped(s3, machine, network, impatient):
    first, second = machine(s3), machine(s3)
    first.publish("things", spec(), filler(count=2500))
    network.rule = lambda method, path: "drop" if path.endswith("bin/00005") else None
    with pytest.raises(RunError, match="no good answer"):
        second.publish("things", spec(), never)
    assert not second.here("things", key())
    network.rule = lambda method, path: None
    network.seen.clear()
    second.publish("things", spec(), never)
    assert network.gets("bin/00004") == 0
    assert network.gets("bin/00005") == 1
    assert content(second) == content(first)
    assert list((second.root / ".staging").iterdir()) == []


def test_a_reader_finishes_while_its_artefact_is_pruned(s3, machine, network):
    first, second = machine(s3), machine(s3)
    first.publish("things", spec(), filler())
    reached, go_on = threading.Event(), threading.Event()

    def stall(method, path):
        if method == "GET" and path.endswith("bin/00001"):
            reached.set()
            assert go_on.wait(30)

    network.rule = stall
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(second.pull, "things", key())
        assert reached.wait(30)
        (removed,) = first.remote.prune(lambda entry: False)
        assert removed["digest"] == key()
        assert not machine(s3).has("things", key())
        go_on.set()
        assert reading.result(30)
    assert content(second) == content(first)
    assert objects(first) != []
    first.remote.prune(lambda entry: True, grace_s=0)  # by now nobody reads
    assert objects(first, "") == []


def test_a_reader_whose_objects_are_gone_has_nothing_and_builds(s3, machine, network):
    first, second = machine(s3), machine(s3)
    first.publish("things", spec(), filler())
    once = []

    def prune(method, path):
        if method == "GET" and path.endswith("bin/00001") and not once:
            once.append(1)
            first.remote.prune(lambda entry: False, grace_s=0)

    network.rule = prune
    built = second.publish("things", spec(), filler(b"own"))
    assert not built.cached
    assert (built.path / "small.json").read_bytes() == b"own"
    assert machine(s3).publish("things", spec(), never).cached


def test_a_reader_takes_the_new_upload_of_what_was_pruned_meanwhile(s3, machine, network):
    first, second = machine(s3), machine(s3)
    first.publish("things", spec(), filler())
    once = []

    def replace(method, path):
        if method == "GET" and path.endswith("bin/00001") and not once:
            once.append(1)
            first.remote.prune(lambda entry: False, grace_s=0)
            other = machine(s3)
            other.publish("things", spec(), filler(b"new"))

    network.rule = replace
    path = second.fetch("things", key())
    assert (path / "large file+.bin").read_bytes() == b"new" * 700


def test_prune_leaves_a_writer_alone_and_sweeps_what_it_left_when_it_died(
    s3, machine, network, monkeypatch
):
    store = machine(s3)
    open_store(str(store.root)).publish("things", spec(), filler())
    pruned = []

    def prune(method, path):
        if method == "PUT" and "/manifests/" in path and not pruned:
            pruned.append(machine(s3).remote.prune(lambda entry: True, grace_s=0))

    network.rule = prune
    assert store.push("things", key())
    assert pruned == [[]]
    assert machine(s3).pull("things", key())

    dead = machine(s3)
    open_store(str(dead.root)).publish("things", spec(1), filler())
    network.rule = lambda method, path: 403 if method == "PUT" and "/manifests/" in path else None
    with pytest.raises(RunError, match="refuses"):
        dead.push("things", key(1))
    network.rule = lambda method, path: None
    assert any(key(1) in name for name in objects(store))
    monkeypatch.setattr("toolkit.store.sweep.ABANDONED_S", -1)
    store.remote.prune(lambda entry: True)
    assert not any(key(1) in name for name in objects(store))
    assert machine(s3).pull("things", key())


def test_a_killed_prune_is_finished_by_the_next(directory, machine):
    store = machine(directory)
    store.publish("things", spec(), filler())
    place = store.remote.place
    manifest = store.remote.manifest("things", key())
    note = f"removed/things/{key()}/{manifest.upload}.json"
    place.put(note, manifest.raw)  # killed between the note and the manifest
    store.remote.prune(lambda entry: True, grace_s=0)
    assert machine(directory).pull("things", key())
    assert objects(store, "removed") == []
    place.put(note, manifest.raw)  # killed between the manifest and the objects
    place.delete(manifest_name("things", key()))
    store.remote.prune(lambda entry: True, grace_s=0)
    assert objects(store, "") == []


def test_a_full_disk_during_a_pull_leaves_no_entry(machine, tmp_path, monkeypatch):
    url = f"file://{tmp_path}/mount"
    machine(url).publish("things", spec(), filler())
    store = machine(url)
    real = Path.open

    def full(path, *words, **options):
        if path.name == "large file+.bin" and words[:1] == ("ab",):
            raise OSError(28, "No space left on device", str(path))
        return real(path, *words, **options)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(BuildError, match="no space left"):
        store.pull("things", key())
    monkeypatch.undo()
    assert not store.here("things", key())
    assert store.pull("things", key())
