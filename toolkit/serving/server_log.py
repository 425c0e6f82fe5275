"""Why a server did not start: the few lines of its log that say so."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path

_MOST = 12
_TAIL_S = 0.2
_PREFIX = re.compile(r"^[EWIF]\d{4} [\d:.]+ \d+ \S+\] ")
# Said by every server on a machine without a GPU, and by every server that stops.
_HARMLESS = re.compile(
    r"CudaDriverHelper|NVML|DCGM|pinned memory|CUDA memory pool|failed to load all models"
)


def reasons(log: Path) -> list[str]:
    """Error lines in the order they came, each once, tracebacks as one line per frame."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found: dict[str, None] = {}
    for line in text.splitlines():
        if line.startswith(("E", "F")) and _PREFIX.match(line) and not _HARMLESS.search(line):
            for part in _message(line).split("\\n"):
                if part.strip():
                    found.setdefault(part.rstrip())
    lines = list(found)
    if not lines:
        lines = [line for line in text.splitlines()[-5:] if line.strip()]
    return lines[:_MOST]


class LogTail:
    """Copies a growing log to stderr."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._copy, name="log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Copy what is left and end."""
        self._done.set()
        self._thread.join()

    def _copy(self) -> None:
        with self._log.open(encoding="utf-8", errors="replace") as file:
            while True:
                done = self._done.wait(_TAIL_S)
                sys.stderr.write(file.read())
                sys.stderr.flush()
                if done:
                    return


def _message(line: str) -> str:
    return _PREFIX.sub("", line).strip().strip('"')
