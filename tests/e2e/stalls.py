"""What every process of a server was doing when it stopped answering."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
import time
from pathlib import Path

from tests.e2e.processes import family, memory_mb
from toolkit.serving import shared_memory
from toolkit.serving.client import metrics
from toolkit.serving.counters import GENERATION_TOKENS
from toolkit.serving.server import TritonServer

_EVERY_S = 2.0
_STALL_S = 10.0
_TOOL_S = 120.0
# Each is used where it is installed.
_TOOLS = {
    "python": ["py-spy", "dump", "--pid"],
    "native": ["gdb", "-batch", "-ex", "thread apply all backtrace 30", "-p"],
}


class StallWatch:
    """`with StallWatch(server, directory): ...` keeps a log of a server under load.

    When no token comes for a while, the stacks of its processes and its own log go there too.
    """

    def __init__(self, server: TritonServer, directory: Path) -> None:
        self._server, self._directory = server, directory
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> StallWatch:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        begun = moved = time.monotonic()
        tokens, dumped = None, False
        with (self._directory / "watch.log").open("w", buffering=1) as log:
            while not self._ended.wait(_EVERY_S):
                now, before, tokens = time.monotonic(), tokens, _tokens(self._server)
                log.write(
                    f"{now - begun:.0f} s: {tokens} tokens, "
                    f"{memory_mb(self._server.pid):.0f} MB, {_shared_mb():.1f} MB shared\n"
                )
                if tokens is not None and tokens != before:
                    moved, dumped = now, False
                elif now - moved > _STALL_S and not dumped:
                    dumped = True
                    self._dump(self._directory / f"after-{now - begun:.0f}s")

    def _dump(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        shutil.copy(self._server.log, directory / "server.log")
        for pid in family(self._server.pid):
            for name, command in _TOOLS.items():
                if shutil.which(command[0]):
                    _run([*command, str(pid)], directory / f"{pid}-{name}.txt")


def _run(command: list[str], output: Path) -> None:
    with output.open("wb") as out, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, timeout=_TOOL_S, check=False)


def _tokens(server: TritonServer) -> float | None:
    """Tokens given to clients until now; None: the server does not answer."""
    try:
        found = metrics(server.address.metrics)
    except OSError:
        return None
    return sum(value for name, value in found.items() if name.startswith(GENERATION_TOKENS))


def _shared_mb() -> float:
    """Of all that run on this machine."""
    return shutil.disk_usage(shared_memory.DIRECTORY).used / 1e6
