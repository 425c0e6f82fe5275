"""A shared store behind a bad network, a full one, a wrong one or none."""

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.store.conftest import KEY_ID, SECRET, TOKEN, content, filler, key, never, objects, spec
from toolkit.errors import RunError

pytestmark = pytest.mark.usefixtures("small_parts")


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


def test_what_appears_during_a_listing_is_in_the_next_one(machine, s3, network):
    place, other = machine(s3).remote.place, machine(s3).remote.place
    asked = []

    def appear(method, path):
        asked.append(path)
        if len(asked) == 2:  # after the listing that found nothing
            other.put("new/thing", b"x")

    network.rule = appear
    assert place.listing("new") == []
    assert len(asked) > 2
    (found,) = place.listing("new")
    assert (found.name, found.size) == ("new/thing", 1)


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
