"""Who listens where."""

from __future__ import annotations

import os
import socket

import pytest

from toolkit.errors import RunError
from toolkit.serving.ports import check_free, listens


def free_ports(count: int) -> list[int]:
    """Ports that nobody listened on a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def test_free_ports_pass():
    http, grpc = free_ports(2)
    check_free("127.0.0.1", {"http": http, "grpc": grpc})


def test_a_port_in_use_names_its_holder():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RunError) as error:
            check_free("127.0.0.1", {"http": port, "grpc": free_ports(1)[0]})
        assert f"http port {port}: in use by" in str(error.value)
        assert f"(pid {os.getpid()})" in str(error.value)
        assert "grpc" not in str(error.value).partition("\n")[0]
        assert "--http-port" in str(error.value)


def test_one_port_for_two_uses_is_refused():
    [port] = free_ports(1)
    with pytest.raises(RunError, match="asked for twice"):
        check_free("127.0.0.1", {"http": port, "grpc": port})


def test_a_host_that_is_not_ours_is_refused():
    with pytest.raises(RunError, match=r"cannot listen on 192\.0\.2\.1"):
        check_free("192.0.2.1", {"http": free_ports(1)[0]})


def test_a_listening_socket_belongs_to_its_process_only():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert listens(os.getpid(), port)
        assert not listens(1, port)
