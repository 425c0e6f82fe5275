"""Only what a trusted key signed is used, where signatures are required."""

import json
import shutil

import minisign
import pytest

from tests.store.conftest import filler, key, spec
from toolkit.errors import InputError
from toolkit.store import MANIFEST, open_store
from toolkit.store.shared_manifest import SIGNATURE, manifest_name
from toolkit.store.signing import DistrustedError, Signer, Trust

# Published with minisign: made by the reference program, over the four bytes "test".
KNOWN_KEY = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3"
KNOWN_SIGNATURE = b"""untrusted comment: signature from minisign secret key
RUQf6LRCGA9i559r3g7V1qNyJDApGip8MfqcadIgT9CuhV3EMhHoN1mGTkUidF/z7SrlQgXdy8ofjb7bNJJylDOocrCo8KLzZwo=
trusted comment: timestamp:1633700835\tfile:test\tprehashed
wLMDjy9FLAuxZ3q4NlEvkgtyhrr0gtTu6KC4KBJdITbbOeAi1zBIYo0v4iTgt8jJpIidRJnp94ABQkJAgAooBQ==
"""


@pytest.fixture
def keys(tmp_path, monkeypatch):
    """`keys(NAME)` makes a pair; `keys.sign(NAME)` and `keys.trust(*NAMES)` put it to use."""

    def make(name, password=None):
        pair = minisign.KeyPair.generate()
        (tmp_path / f"{name}.pub").write_bytes(bytes(pair.public_key) + b"\n")
        with pair.secret_key as secret:
            if password:
                secret.encrypt(password, opslimit=32768, memlimit=1 << 24)
            (tmp_path / f"{name}.key").write_bytes(bytes(secret) + b"\n")

    def sign(name):
        monkeypatch.setenv("SPECTOOL_SIGNING_KEY", str(tmp_path / f"{name}.key"))

    def trust(*names):
        texts = [(tmp_path / f"{name}.pub").read_text() for name in names]
        (tmp_path / "trusted").write_text("".join(texts))
        monkeypatch.setenv("SPECTOOL_TRUSTED_KEYS", str(tmp_path / "trusted"))

    make.sign, make.trust = sign, trust
    for name in ("SIGNING_KEY", "SIGNING_PASSWORD", "TRUSTED_KEYS"):
        monkeypatch.delenv(f"SPECTOOL_{name}", raising=False)
    for name in ("ours", "theirs"):
        make(name)
    return make


def never(out):
    raise AssertionError("built although it was there")


def test_a_signature_by_the_reference_program_is_accepted(tmp_path):
    (tmp_path / "keys").write_text(f"untrusted comment: known\n{KNOWN_KEY}\n")
    trust = Trust(tmp_path / "keys")
    assert trust.accepts(b"test", KNOWN_SIGNATURE)
    assert not trust.accepts(b"Test", KNOWN_SIGNATURE)
    assert not trust.accepts(b"test", KNOWN_SIGNATURE.replace(b"timestamp:1633", b"timestamp:1733"))
    for broken in (None, b"", b"nonsense", KNOWN_SIGNATURE[:100]):
        assert not trust.accepts(b"test", broken)


def test_what_a_trusted_key_signed_is_used(url, machine, keys):
    keys.sign("ours")
    machine(url).publish("things", spec(), filler())
    keys.trust("theirs", "ours")
    reader = machine(url, require_signature=True)
    assert reader.publish("things", spec(), never).cached
    path = reader.path("things", key())
    assert reader.remote.trust.accepts(
        (path / MANIFEST).read_bytes(), (path / SIGNATURE).read_bytes()
    )
    (entry,) = reader.remote.entries()
    assert reader.remote.distrusted(entry) == []


@pytest.mark.parametrize(("signer", "says"), [(None, "is not signed"), ("theirs", "another key")])
def test_what_no_trusted_key_signed_is_refused(directory, machine, keys, signer, says):
    if signer:
        keys.sign(signer)
    machine(directory).publish("things", spec(), filler())
    keys.trust("ours")
    reader = machine(directory)
    with pytest.raises(DistrustedError, match=says):
        reader.publish("things", spec(), never)
    assert not reader.here("things", key())
    (entry,) = reader.remote.entries()
    assert reader.remote.problems(entry) == []
    assert says in reader.remote.distrusted(entry)[0]


def test_a_signed_manifest_that_was_changed_is_refused(directory, machine, keys):
    keys.sign("ours")
    writer = machine(directory)
    writer.publish("things", spec(), filler())
    manifest = writer.remote.manifest("things", key())
    changed = {**manifest.content, "seconds": 0}
    writer.remote.place.put(manifest_name("things", key()), json.dumps(changed).encode())
    keys.trust("ours")
    with pytest.raises(DistrustedError, match="or changed"):
        machine(directory).pull("things", key())


def test_what_was_fetched_before_signatures_were_required_is_not_used(directory, machine, keys):
    machine(directory).publish("things", spec(), filler())
    reader = machine(directory)
    reader.fetch("things", key())
    keys.trust("ours")
    strict = type(reader)(directory, reader.root)
    assert not strict.here("things", key())
    with pytest.raises(DistrustedError):
        strict.fetch("things", key())
    # Signed and pushed again, it takes the place of the copy here.
    keys.sign("ours")
    strict.remote.prune(lambda entry: False, grace_s=0)
    machine(directory).publish("things", spec(), filler(b"signed"))
    assert (strict.fetch("things", key()) / "small.json").read_bytes() == b"signed"


def test_what_this_machine_built_needs_no_signature(directory, machine, keys):
    store = machine(directory)
    open_store(str(store.root)).publish("things", spec(), filler())
    keys.trust("ours")
    assert type(store)(directory, store.root).here("things", key())


def test_where_signatures_are_required_nothing_unsigned_is_built_for_sharing(
    directory, machine, keys
):
    keys.trust("ours")
    with pytest.raises(InputError, match="SPECTOOL_SIGNING_KEY"):
        machine(directory).publish("things", spec(), never)


def test_a_key_with_a_password(directory, machine, keys, monkeypatch):
    keys("locked", password="open sesame")
    keys.sign("locked")
    keys.trust("locked")
    with pytest.raises(InputError, match="SPECTOOL_SIGNING_PASSWORD"):
        Signer.from_environment().sign(b"x", "about")
    monkeypatch.setenv("SPECTOOL_SIGNING_PASSWORD", "wrong horse")
    with pytest.raises(InputError, match="not usable") as error:
        Signer.from_environment().sign(b"x", "about")
    assert "wrong horse" not in str(error.value)
    monkeypatch.setenv("SPECTOOL_SIGNING_PASSWORD", "open sesame")
    signature = Signer.from_environment().sign(b"x", "about")
    assert Trust.from_environment(wanted=True).accepts(b"x", signature)


@pytest.mark.parametrize("text", ["", "no key\n", "untrusted comment: only this\n"])
def test_a_file_without_keys_is_said(tmp_path, text):
    (tmp_path / "keys").write_text(text)
    with pytest.raises(InputError, match=r"public key"):
        Trust(tmp_path / "keys")


def test_what_is_missing_for_signatures_is_said(tmp_path, keys, monkeypatch):
    with pytest.raises(InputError, match="SPECTOOL_TRUSTED_KEYS"):
        Trust.from_environment(wanted=True)
    with pytest.raises(InputError, match="not readable"):
        Trust(tmp_path / "nowhere")
    monkeypatch.setenv("SPECTOOL_SIGNING_KEY", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="not usable as a minisign secret key"):
        Signer.from_environment().sign(b"x", "about")


@pytest.mark.skipif(shutil.which("minisign") is None, reason="needs the program minisign")
def test_the_reference_program_accepts_our_signatures(tmp_path, keys):
    import subprocess

    keys.sign("ours")
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "file.minisig").write_bytes(Signer.from_environment().sign(b"content", "about"))
    words = ["minisign", "-V", "-p", str(tmp_path / "ours.pub"), "-m", str(tmp_path / "file")]
    subprocess.run(words, check=True, capture_output=True)


def test_a_key_that_cannot_sign_is_said_before_anything_is_built(
    directory, machine, keys, monkeypatch, tmp_path
):
    monkeypatch.setenv("SPECTOOL_SIGNING_KEY", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="not usable"):
        machine(directory).publish("things", spec(), never)
