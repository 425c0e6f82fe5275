"""What one machine built, every machine has: whole, the same bytes, whatever the store does."""

import json
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.store.conftest import KEY_ID, SECRET, TOKEN, filler, key, spec
from tests.store.network import wait_until
from toolkit.errors import BuildError, InputError, RunError
from toolkit.store import MANIFEST, describe_files, open_store
from toolkit.store.shared import SharedStore
from toolkit.store.shared_manifest import DamagedError, manifest_name

pytestmark = pytest.mark.usefixtures("small_parts")


def never(out):
    raise AssertionError("built although it was there")


def content(store, number=0):
    """Every file of an entry, as it lies on this machine."""
    found = describe_files(store.path("things", key(number)))
    found.pop(MANIFEST)
    return found


def objects(store, prefix="objects"):
    return [found.name for found in store.remote.place.listing(prefix)]


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


class Mischief:
    """A tenth of all requests fare badly, by a seed, and differently when repeated."""

    def __init__(self, seed):
        self.random, self.lock, self.done = random.Random(seed), threading.Lock(), set()

    def __call__(self, method, path):
        fates = (
            [500, 503, "late 500", "drop", "short", "cut"] if method != "HEAD" else [500, "drop"]
        )
        with self.lock:
            if self.random.random() >= 0.1:
                return None
            fate = self.random.choice(fates)
            self.done.add(fate)
            return fate


def test_thirty_two_writers_through_a_bad_network_lose_nothing(s3, machine, network):
    network.rule = Mischief(seed=1)
    writers = [(machine(s3), number % 8, b"writer %02d " % number) for number in range(32)]
    start = threading.Barrier(32)

    def write(writer):
        store, number, text = writer
        start.wait()
        return store.publish("things", spec(number), filler(text, 150)).path

    with ThreadPoolExecutor(32) as pool:
        paths = list(pool.map(write, writers))
    assert len(network.rule.done) == 6  # each kind of mischief was there
    network.rule = lambda method, path: None
    for (store, _, text), path in zip(writers, paths, strict=True):
        assert store.damaged(path) == []
        assert (path / "small.json").read_bytes().startswith(b"writer ")
        assert text  # its own, or that of whoever was first
    reader = machine(s3)
    entries = list(reader.remote.entries())
    assert sorted(entry["digest"] for entry in entries) == sorted(key(n) for n in range(8))
    assert [reader.remote.problems(entry) for entry in entries] == [[]] * 8
    for number in range(8):
        path = reader.fetch("things", key(number))
        text = (path / "small.json").read_bytes()
        assert int(text.split()[1]) % 8 == number
        # Every file is the same writer's.
        assert (path / "large file+.bin").read_bytes() == text * 150
        assert (path / "rank" / "0" / "serve.sh").read_bytes() == text * 10
    # Whoever was not first has taken its objects back.
    live = {entry["upload"] for entry in entries}
    assert {name.split("/")[3] for name in objects(reader)} <= live


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


def test_a_store_that_keeps_half_of_what_it_is_sent_never_shows_it(s3, machine, network):
    store = machine(s3)
    network.rule = lambda method, path: (
        "short write" if "small.json" in path and method == "PUT" else None
    )
    with pytest.raises(RunError, match="reads back as other bytes") as error:
        store.publish("things", spec(), filler())
    assert f"whole in {store.root}" in str(error.value)
    assert store.damaged(store.path("things", key())) == []
    network.rule = lambda method, path: None
    assert not store.remote.has("things", key())
    store.publish("things", spec(), never)
    assert store.remote.has("things", key())


def test_a_store_that_refuses_writes_says_so_before_anything_is_built(s3, machine, network):
    network.rule = lambda method, path: 403 if method == "PUT" else None
    with pytest.raises(RunError, match="refuses this to you"):
        machine(s3).publish("things", spec(), never)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_refuses_writes_says_so_before_anything_is_built(machine, tmp_path):
    (tmp_path / "mount").mkdir(mode=0o555)
    with pytest.raises(RunError, match="refuses this to you"):
        machine(f"file://{tmp_path}/mount/a").publish("things", spec(), never)


def test_whoever_may_only_read_still_pulls(s3, machine, network):
    machine(s3).publish("things", spec(), filler())
    network.rule = lambda method, path: 403 if method == "PUT" else None
    assert machine(s3).publish("things", spec(), never).cached


def test_a_network_that_is_lost_for_a_while_is_waited_for(s3, machine, network):
    first, second = machine(s3), machine(s3)
    lost = threading.Event()
    network.rule = lambda method, path: "drop" if lost.is_set() else None

    def outage(path_has):
        """Goes away at the first request of that kind, and comes back after 1.5 s."""
        begun = threading.Event()

        def rule(method, path):
            if path_has in path and not begun.is_set():
                begun.set()
                lost.set()
                threading.Timer(1.5, lost.clear).start()
            return "drop" if lost.is_set() else None

        network.rule = rule
        return begun

    for work, store in ((filler(), first), (never, second)):
        begun, started = outage("large"), time.monotonic()
        store.publish("things", spec(), work)
        assert begun.is_set()
        assert time.monotonic() - started >= 1.5
    assert content(second) == content(first)


def test_a_network_that_stays_away_ends_in_one_sentence_and_nothing_is_lost(
    s3, machine, network, impatient
):
    store = machine(s3)
    network.rule = lambda method, path: "drop" if "large" in path else None
    with pytest.raises(RunError, match="no good answer for") as error:
        store.publish("things", spec(), filler())
    assert "spectool store push" in str(error.value)
    assert store.here("things", key())
    network.rule = lambda method, path: None
    assert not store.remote.has("things", key())
    store.publish("things", spec(), never)
    assert machine(s3).pull("things", key())


def test_a_wrong_address_is_said_within_ten_seconds(machine, network, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # discard: nobody listens
    started = time.monotonic()
    with pytest.raises(RunError, match=r"s3://team/x: cannot read .*no answer for") as error:
        machine("s3://team/x").has("things", key())
    assert time.monotonic() - started < 10
    assert len(str(error.value).splitlines()) == 1


def test_a_bucket_that_is_not_there_is_no_empty_store(machine, s3):
    for ask in (lambda s: s.has("things", key()), lambda s: list(s.remote.entries())):
        with pytest.raises(RunError, match="NoSuchBucket"):
            ask(machine("s3://nobodys-bucket/x"))


PUSHER = """
    import sys
    from pathlib import Path
    from toolkit.store import shared_manifest
    from toolkit.store.shared import SharedStore

    shared_manifest.PART_BYTES = 1000
    SharedStore(sys.argv[1], Path(sys.argv[2])).push("things", sys.argv[3])
"""


def test_a_killed_push_shows_nothing_and_the_next_one_continues_it(s3, machine, network):
    store = machine(s3)
    open_store(str(store.root)).publish("things", spec(), filler(count=2500))  # 7 + 1 + 1 objects
    reached = threading.Event()

    def stall(method, path):
        if method == "PUT" and path.endswith("bin/00004"):
            reached.set()
            time.sleep(60)

    network.rule = stall
    code = [sys.executable, "-c", textwrap.dedent(PUSHER), s3, str(store.root), key()]
    victim = subprocess.Popen(code, cwd=Path(__file__).parents[2])
    assert reached.wait(60)
    # The four before it are there: a part is sent only when a worker is free.
    wait_until(lambda: len([n for n in objects(store) if "large" in n]) >= 4)
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    network.rule = lambda method, path: None
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


def test_no_secret_reaches_an_error(s3, machine, network, impatient):
    network.secrets = (SECRET.encode(), TOKEN.encode())  # the server repeats them
    store = machine(s3)
    store.publish("things", spec(), filler())
    for status in (403, 500, 503):
        network.rule = lambda method, path, status=status: status
        for ask in (
            lambda: store.remote.has("things", key(1)),
            lambda: list(store.remote.entries()),
            lambda: store.remote.check_writable() or store.remote.place.put("x", b""),
            lambda: store.remote.prune(lambda entry: True),
        ):
            with pytest.raises(RunError) as error:
                ask()
            for secret in (SECRET, KEY_ID, TOKEN, "Signature"):
                assert secret not in str(error.value)
            assert error.value.__suppress_context__


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
