"""A real S3 server on loopback, a network in front of it, and stores that share through them."""

from __future__ import annotations

import functools
import itertools
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from tests.serving.test_ports import free_ports
from tests.store.network import Network, wait_until
from toolkit.store import MANIFEST, describe_files, digest
from toolkit.store.places import place
from toolkit.store.places.s3 import S3Place
from toolkit.store.shared import SharedStore

SECRET, KEY_ID, TOKEN = "very+secret/key", "AKIDNOBODYMUSTSEE", "session-token-nobody-must-see"
_numbers = itertools.count()


@pytest.fixture(scope="session")
def s3_port():
    (port,) = free_ports(1)
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def answers():
        assert server.poll() is None
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=5):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False

    wait_until(answers, 60)
    yield port
    server.kill()
    server.wait()


@functools.cache
def _session():
    """One for all clients: to read AWS's tables for each takes 0.1 s."""
    from aiobotocore.session import get_session

    return get_session()


@pytest.fixture
def aws(s3_port, monkeypatch):
    """The usual environment of whoever uses this server."""
    for name in ("AWS_PROFILE", "SPECTOOL_TRUSTED_KEYS", "SPECTOOL_SIGNING_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{s3_port}")
    session = _session()
    own = S3Place.options
    monkeypatch.setattr(S3Place, "options", lambda self: {**own(self), "session": session})


@pytest.fixture
def network(aws, s3_port, monkeypatch):
    """Between the environment's AWS settings and the server."""
    found = Network(s3_port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", found.url)
    yield found
    found.close()


@pytest.fixture
def s3(aws):
    """The URL of an empty store in a bucket of its own."""
    import boto3

    bucket = f"team-{next(_numbers)}"
    client = boto3.client("s3")
    client.create_bucket(Bucket=bucket)
    client.close()
    return f"s3://{bucket}/spectool"


@pytest.fixture
def directory(tmp_path):
    """The URL of an empty store in a directory."""
    (tmp_path / "mount").mkdir()
    return f"file://{tmp_path}/mount/spectool"


@pytest.fixture(params=["s3", "directory"])
def url(request):
    """An empty shared store of each kind."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def machine(tmp_path):
    """Make the store of one more machine: its own directory in front of the shared URL."""

    def make(url, **options):
        return SharedStore(url, tmp_path / f"machine-{next(_numbers)}", **options)

    return make


@pytest.fixture
def small_parts(monkeypatch):
    """Objects of 1,000 bytes, so that small files have several."""
    monkeypatch.setattr("toolkit.store.shared_manifest.PART_BYTES", 1000)


@pytest.fixture
def impatient(monkeypatch):
    """A store is given up after half a second."""
    monkeypatch.setattr(place, "PATIENCE_S", 0.5)
    monkeypatch.setattr(place, "FIRST_ANSWER_S", 0.5)


def spec(number=0):
    return {"kind": "things", "number": number}


def key(number=0):
    return digest(spec(number))


def filler(text=b"abc", count=700):
    """Builds a directory with an empty, a small, a large and a nested file."""

    def build(out):
        (out / "empty").touch()
        (out / "small.json").write_bytes(text)
        (out / "large file+.bin").write_bytes(text * count)
        (out / "rank" / "0").mkdir(parents=True)
        (out / "rank" / "0" / "serve.sh").write_bytes(text * 10)
        (out / "rank" / "0" / "serve.sh").chmod(0o755)

    return build


def never(out):
    raise AssertionError("built although it was there")


def content(store, number=0):
    """Every file of an entry, as it lies on this machine."""
    found = describe_files(store.path("things", key(number)))
    found.pop(MANIFEST)
    return found


def objects(store, prefix="objects"):
    return [found.name for found in store.remote.place.listing(prefix)]
