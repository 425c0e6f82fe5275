"""What one machine built, every machine has: whole, the same bytes, whatever the store does."""

import json
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.store.conftest import content, filler, key, never, spec
from toolkit.errors import InputError
from toolkit.store import MANIFEST, open_store
from toolkit.store.shared import SharedStore
from toolkit.store.shared_manifest import manifest_name

pytestmark = pytest.mark.usefixtures("small_parts")


def test_what_one_machine_builds_another_finds(url, machine):
    first, second = machine(url), machine(url)
    assert not second.has("things", key())
    made = first.publish("things", spec(), filler())
    assert not made.cached
    assert second.has("things", key())
    assert not second.here("things", key())
    found = second.publish("things", spec(), never)
    assert found.cached
    assert found.path == second.root / "things" / key()
    assert content(second) == content(first)
    assert os.access(found.path / "rank" / "0" / "serve.sh", os.X_OK)
    assert not os.access(found.path / "small.json", os.X_OK)
    manifests = [
        json.loads((s.path("things", key()) / MANIFEST).read_text()) for s in (first, second)
    ]
    assert {name: manifests[1][name] for name in manifests[0]} == manifests[0]
    assert second.damaged(found.path) == []


def test_nothing_is_asked_twice_of_what_is_here(s3, machine, network):
    store = machine(s3)
    store.publish("things", spec(), filler())
    network.seen.clear()
    store.publish("things", spec(), never)
    assert set(network.seen) == {("GET", f"/{s3[5:]}/{manifest_name('things', key())}")}


def test_a_local_entry_is_shared_when_it_is_asked_for_again(directory, machine):
    store = machine(directory)
    open_store(str(store.root)).publish("things", spec(), filler())
    assert store.publish("things", spec(), never).cached
    assert machine(directory).pull("things", key())


def test_of_two_that_push_one_digest_the_first_stands_and_both_work_on(url, machine):
    first, second = machine(url), machine(url)
    first.publish("things", spec(), filler(b"abc"))
    open_store(str(second.root)).publish("things", spec(), filler(b"xyz"))  # an engine's bytes vary
    assert not second.push("things", key())
    third = machine(url)
    third.fetch("things", key())
    assert content(third) == content(first) != content(second)
    assert second.damaged(second.path("things", key())) == []


def test_thirty_two_writers_share_a_directory(machine, directory, tmp_path):
    writers = [(machine(directory), number % 4, b"writer %02d " % number) for number in range(32)]
    start = threading.Barrier(32)

    def write(writer):
        store, number, text = writer
        start.wait()
        store.publish("things", spec(number), filler(text, 150))

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(write, writers))
    reader = machine(directory)
    assert [reader.remote.problems(entry) for entry in reader.remote.entries()] == [[]] * 4
    assert not list(tmp_path.glob("mount/**/.partial-*"))


@pytest.mark.parametrize(
    "url",
    ["s3://KEY:SECRETWORD@bucket/x", "s3://bucket/x?token=SECRETWORD", "s3://bucket#SECRETWORD"],
)
def test_a_secret_in_a_url_is_refused_and_not_repeated(url):
    with pytest.raises(InputError, match="from the environment") as error:
        open_store(url)
    assert "SECRETWORD" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s4://bucket/x", "unknown store protocol 's4'.*file, gs, s3"),
        ("s3://", "expected s3://BUCKET/PREFIX"),
        ("s3://bucket//x", "expected s3://BUCKET/PREFIX"),
        ("s3://bucket/../x", "expected s3://BUCKET/PREFIX"),
        ("file://relative/x", "not an absolute path"),
        ("file:///", "a shared directory is file:///absolute/path"),
        ("file:///a/../b", "expected file:///absolute/path"),
    ],
)
def test_what_is_no_address_is_said(url, says):
    with pytest.raises(InputError, match=says):
        open_store(url)


def test_a_url_in_the_environment_leaves_the_cache_in_front(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SPECTOOL_STORE", "s3://team/engines/")
    store = open_store()
    assert isinstance(store, SharedStore)
    assert (str(store), store.root) == ("s3://team/engines", tmp_path / "spectool")
    monkeypatch.setenv("SPECTOOL_STORE", str(tmp_path / "here"))
    assert open_store("s3://team/engines").root == tmp_path / "here"
    assert open_store().root == tmp_path / "here"


def test_a_worker_gets_its_own_connection(s3, machine):
    store = machine(s3)
    store.publish("things", spec(), filler())
    other = pickle.loads(pickle.dumps(store))
    assert (str(other), other.root) == (str(store), store.root)
    assert other.remote.has("things", key())


def test_without_the_plugin_the_error_names_the_extra(machine, monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(Exception, match=r"pip install 'spectool\[s3\]'"):
        machine("s3://team/x").has("things", key())


def test_a_local_store_loads_neither_fsspec_nor_its_plugins(tmp_path):
    code = (
        "import sys\nfrom toolkit.cli import main\n"
        "heavy = {'fsspec', 's3fs', 'gcsfs', 'botocore', 'minisign'}\n"
        "try:\n    main(sys.argv[1:])\n"
        "finally:\n    print(sorted(heavy & set(sys.modules)))"
    )
    words = ["store", "ls", "--store", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"
