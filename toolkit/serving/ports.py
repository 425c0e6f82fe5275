"""Which process listens where: a port in use is found before a server starts, and named."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from pathlib import Path

from toolkit.errors import RunError

_LISTEN = "0A"


def check_free(host: str, ports: dict[str, int]) -> None:
    """Raise RunError naming every port that cannot be listened on, and who holds it."""
    problems = [
        f"{use} port {port}: {problem}"
        for use, port in ports.items()
        if (problem := _problem(host, port))
    ]
    problems += [
        f"{use} port {port}: asked for twice"
        for use, port in ports.items()
        if list(ports.values()).count(port) > 1
    ]
    if problems:
        raise RunError(
            f"cannot listen on {host}: {'; '.join(problems)}\n"
            "choose others with --http-port, --grpc-port and --metrics-port"
        )


def listens(pid: int, port: int) -> bool:
    """Whether this process itself has a listening socket on `port`."""
    return bool(_sockets(pid) & _listening(port))


def _problem(host: str, port: int) -> str | None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return f"{host!r} is not an address of this machine ({error.strerror or error})"
    family, kind, _, _, address = found[0]
    with socket.socket(family, kind) as probe:
        # As servers do: a port whose last connections are still timing out is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return f"in use{_holder(port)}"
            return error.strerror or str(error)
    return None


def _holder(port: int) -> str:
    """` by name (pid N)`, if the process is one that we may look at."""
    inodes = _listening(port)
    for process in Path("/proc").glob("[0-9]*"):
        if _sockets(int(process.name)) & inodes:
            try:
                name = (process / "comm").read_text().strip()
            except OSError:
                continue
            return f" by {name} (pid {process.name})"
    return ""


def _listening(port: int) -> set[str]:
    """Socket inodes that listen on `port`, over IPv4 and IPv6."""
    return {
        fields[9]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for fields in _rows(Path(table))
        if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port
    }


def _rows(table: Path) -> Iterator[list[str]]:
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return
    yield from (line.split() for line in lines)


def _sockets(pid: int) -> set[str]:
    """Inodes of a process's sockets; empty when we may not see them."""
    found = set()
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = str(link.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        return set()
    return found
