"""A channel moves in one step, goes back in one step, and only one person moves it at a time."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import minisign
import pytest

from tests.store.conftest import filler, key, spec
from toolkit.errors import InputError, RunError
from toolkit.store.channels import Channels
from toolkit.store.shared_manifest import DamagedError
from toolkit.store.signing import DistrustedError


@pytest.fixture
def shelf(url, machine):
    """A shared store with five artefacts."""
    store = machine(url)
    for number in range(5):
        store.publish("things", spec(number), filler())
    return store


def pair(number):
    return ("things", key(number))


def now(channels, channel="production"):
    return channels.current("chat", channel).artefacts


def test_promotion_and_rollback_walk_the_history(shelf):
    channels = Channels(shelf.remote)
    for number in range(3):
        channels.promote("chat", "production", [pair(number)], "tuned")
    assert now(channels) == (pair(2),)
    assert channels.rollback("chat", "production").number == 4
    assert now(channels) == (pair(1),)
    channels.rollback("chat", "production")
    assert now(channels) == (pair(0),)
    with pytest.raises(InputError, match="nothing to go back to"):
        channels.rollback("chat", "production")
    channels.promote("chat", "production", [pair(4)], "tuned")
    channels.rollback("chat", "production")
    assert now(channels) == (pair(0),)  # not one of those that were rolled back
    history = channels.history("chat", "production")
    assert [release.number for release in history] == [1, 2, 3, 4, 5, 6, 7]
    assert history[3].why == "rollback from #3 to #2"
    assert channels.all() == [history[-1]]


def test_promoting_what_is_current_changes_nothing(shelf):
    channels = Channels(shelf.remote)
    first = channels.promote("chat", "staging", [pair(0), pair(1)], "tuned")
    assert channels.promote("chat", "staging", [pair(1), pair(0)], "again") == first


def test_channels_and_services_do_not_mix(shelf):
    channels = Channels(shelf.remote)
    channels.promote("chat", "staging", [pair(0)], "tuned")
    channels.promote("chat", "production", [pair(1)], "tuned")
    channels.promote("chat.2", "staging", [pair(2)], "tuned")
    found = {(r.service, r.channel): r.artefacts for r in channels.all()}
    assert found == {
        ("chat", "staging"): (pair(0),),
        ("chat", "production"): (pair(1),),
        ("chat.2", "staging"): (pair(2),),
    }


def test_of_many_who_move_a_channel_at_once_each_number_is_one_persons(shelf):
    channels, start = Channels(shelf.remote), threading.Barrier(5)

    def move(number):
        start.wait()
        try:
            return channels.promote("chat", "production", [pair(number)], str(number)).number
        except RunError as error:
            return str(error)

    with ThreadPoolExecutor(5) as pool:
        moved = list(pool.map(move, range(5)))
    numbers = [number for number in moved if isinstance(number, int)]
    refused = [text for text in moved if isinstance(text, str)]
    assert all("somebody else moved this channel" in text for text in refused)
    history = channels.history("chat", "production")
    assert sorted(numbers) == [release.number for release in history]
    assert len(set(numbers)) == len(numbers) >= 1


def test_what_is_not_there_is_not_promoted(shelf):
    channels = Channels(shelf.remote)
    with pytest.raises(RunError, match=f"not in .*things/{key(9)}"):
        channels.promote("chat", "production", [pair(0), pair(9)], "tuned")
    with pytest.raises(InputError, match="nothing was promoted"):
        channels.current("chat", "production")


def test_what_a_channel_may_go_back_to_is_in_use(shelf):
    channels = Channels(shelf.remote)
    for number in range(5):
        channels.promote("chat", "production", [pair(number)], "tuned")
    assert shelf.remote.in_use() == {pair(2), pair(3), pair(4)}
    channels.promote("chat", "staging", [pair(0)], "tuned")
    assert shelf.remote.in_use() == {pair(0), pair(2), pair(3), pair(4)}


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "x" * 101, "ü"])
def test_a_name_that_is_no_name_is_refused(directory, machine, name):
    channels = Channels(machine(directory).remote)
    for service, channel in ((name, "staging"), ("chat", name)):
        with pytest.raises(InputError, match="letters, digits"):
            channels.promote(service, channel, [], "tuned")


@pytest.mark.parametrize("text", ["", "{}", '{"release": "{}", "signature": null}', "[]"])
def test_a_damaged_record_is_said(directory, machine, text):
    store = machine(directory)
    store.remote.place.put("channels/chat/staging/00000001.json", text.encode())
    with pytest.raises(DamagedError, match="not a record of a channel"):
        Channels(store.remote).current("chat", "staging")


def test_a_record_in_the_wrong_place_is_refused(directory, machine):
    store = machine(directory)
    store.publish("things", spec(0), filler())
    channels = Channels(store.remote)
    channels.promote("chat", "staging", [pair(0)], "tuned")
    raw = store.remote.place.read("channels/chat/staging/00000001.json")
    store.remote.place.put("channels/chat/production/00000001.json", raw)
    with pytest.raises(DamagedError, match="another channel's"):
        channels.current("chat", "production")


def test_with_trusted_keys_only_signed_records_move_a_channel(
    directory, machine, tmp_path, monkeypatch
):
    store = machine(directory)
    store.publish("things", spec(0), filler())
    Channels(store.remote).promote("chat", "staging", [pair(0)], "unsigned")
    pair_of_keys = minisign.KeyPair.generate()
    (tmp_path / "pub").write_bytes(bytes(pair_of_keys.public_key))
    (tmp_path / "key").write_bytes(bytes(pair_of_keys.secret_key))
    monkeypatch.setenv("SPECTOOL_TRUSTED_KEYS", str(tmp_path / "pub"))
    strict = Channels(machine(directory).remote)
    with pytest.raises(DistrustedError):
        strict.current("chat", "staging")
    monkeypatch.setenv("SPECTOOL_SIGNING_KEY", str(tmp_path / "key"))
    strict.promote("chat", "production", [pair(0)], "signed")
    assert now(strict) == (pair(0),)
    name = "channels/chat/production/00000001.json"
    outer = json.loads(store.remote.place.read(name))
    outer["release"] = outer["release"].replace('"why": "signed"', '"why": "forged"')
    store.remote.place.put(name, json.dumps(outer).encode())
    with pytest.raises(DistrustedError):
        strict.current("chat", "production")
