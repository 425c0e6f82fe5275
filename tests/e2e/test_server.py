"""The life of a real server: it starts, or says why not, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest

from tests.serving.conftest import with_layout
from tests.serving.test_ports import free_ports
from toolkit.errors import RunError
from toolkit.serving import shared_memory
from toolkit.serving.lint import lint
from toolkit.serving.repository import write_repository
from toolkit.serving.server import Address, TritonServer

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module")
def repository(built, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("server") / "repo"
    return write_repository(with_layout(built, "inprocess"), out, copy_engines=True)


def address() -> Address:
    return Address("127.0.0.1", *free_ports(3))


def regions() -> set[str]:
    return {path.name for path in shared_memory.DIRECTORY.glob(f"spectool_{os.getpid()}_*")}


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_stopped_server_leaves_nothing_behind(repository, tmp_path):
    before = regions()
    log = tmp_path / "logs" / "server.log"
    with TritonServer(repository, ["spectool"], address(), log=log, timeout_s=60) as server:
        pid = server.pid
        assert regions() > before
        assert is_running(pid)
        started = time.monotonic()
    assert time.monotonic() - started < 10
    assert regions() == before
    assert not is_running(pid)
    assert "successfully loaded 'spectool'" in log.read_text()
    assert lint(repository) == []


def test_a_killed_server_leaves_nothing_behind_either(repository):
    before = regions()
    server = TritonServer(repository, ["spectool"], address(), timeout_s=60)
    server.start()
    os.kill(server.pid, signal.SIGKILL)
    while server.poll() is None:
        time.sleep(0.05)
    server.stop()
    assert regions() == before


def test_a_port_in_use_is_found_before_anything_starts(repository):
    where = address()
    with socket.create_server(("127.0.0.1", where.http_port)):
        started = time.monotonic()
        with pytest.raises(RunError, match=f"http port {where.http_port}: in use by"):
            TritonServer(repository, ["spectool"], where).start()
        assert time.monotonic() - started < 3


def test_a_model_that_cannot_load_is_a_message_with_the_reason(repository, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(repository, broken)
    (broken / "spectool" / "1" / "model.py").write_text("raise ValueError('boom at import')\n")
    with pytest.raises(RunError, match="boom at import") as error:
        TritonServer(broken, ["spectool"], address(), timeout_s=60).start()
    message = str(error.value)
    assert "exit code 1" in message
    log = Path(message.rpartition("log: ")[2])
    assert "boom at import" in log.read_text()
    shutil.rmtree(log.parent)


def test_a_model_that_never_comes_up_is_given_up(repository, tmp_path):
    slow = tmp_path / "slow"
    shutil.copytree(repository, slow)
    (slow / "spectool" / "1" / "model.py").write_text("import time\ntime.sleep(600)\n")
    started = time.monotonic()
    with pytest.raises(RunError, match="not ready after 3 s: spectool") as error:
        TritonServer(slow, ["spectool"], address(), timeout_s=3).start()
    assert time.monotonic() - started < 20
    shutil.rmtree(Path(str(error.value).rpartition("log: ")[2]).parent)


def serve_command(repository: Path, where: Address, *more: str) -> list[str]:
    return [
        sys.executable,
        "-c",
        "from toolkit.cli import main; main()",
        "serve",
        str(repository),
        f"--http-port={where.http_port}",
        f"--grpc-port={where.grpc_port}",
        f"--metrics-port={where.metrics_port}",
        *more,
    ]


def test_serve_check_starts_answers_and_stops(repository):
    done = subprocess.run(
        serve_command(repository, address(), "--check", "--json"),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["entry"] == "spectool"
    assert document["smoke"]
    assert not is_running(document["pid"])


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_serve_stops_cleanly_when_told_to(repository, how):
    where = address()
    process = subprocess.Popen(
        serve_command(repository, where, "--json"), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    with process.stdout:
        document = json.loads(process.stdout.readline())
        with urllib.request.urlopen(f"{where.http}/v2/models/spectool/ready") as answer:
            assert answer.status == 200
        process.send_signal(how)
        assert process.wait(20) == 0
    assert not is_running(document["pid"])
    assert not list(shared_memory.DIRECTORY.glob(f"spectool_{process.pid}_*"))


def test_a_serve_that_is_killed_takes_its_server_along(repository):
    where = address()
    process = subprocess.Popen(
        serve_command(repository, where, "--json"), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    with process.stdout:
        pid = json.loads(process.stdout.readline())["pid"]
        process.kill()
        process.wait(10)
    deadline = time.monotonic() + 15
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_running(pid)
    with TritonServer(repository, ["spectool"], address(), timeout_s=60):
        pass  # the next one cleans up after it
    assert not list(Path(tempfile.gettempdir()).glob(f"spectool-triton-{process.pid}-*"))
    assert not list(shared_memory.DIRECTORY.glob(f"spectool_{process.pid}_*"))


def test_serve_refuses_a_repository_with_errors(repository, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(repository, broken)
    (broken / "spectool" / "config.pbtxt").write_text('name: "specs"\n')
    done = subprocess.run(
        serve_command(broken, address()), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "must equal its directory's" in done.stderr
    assert "Traceback" not in done.stderr
