"""Why a server did not start: the few lines of its log that say so."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path

_MOST = 12
_TAIL_S = 0.2
_FRAMES = 4
_PREFIX = re.compile(r"^[EWIF]\d{4} [\d:.]+ \d+ \S+\] ")
# Said by every server on a machine without a GPU; and once more, of what follows with its model.
_HARMLESS = re.compile(
    r"CudaDriverHelper|NVML|DCGM|pinned memory|CUDA memory pool|Failed to create instance"
)


def reasons(log: Path) -> list[str]:
    """Error lines in the order they came, each once, with the nearest frames of a traceback."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found: dict[str, None] = {}
    for line in text.splitlines():
        if _PREFIX.match(line) and line[0] in "EF" and not _HARMLESS.search(line):
            for part in _message(line):
                found.setdefault(part)
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


def _message(line: str) -> list[str]:
    """The reason, then the frames of ours that led to it; the interpreter's own are no help."""
    reason, *frames = _PREFIX.sub("", line).strip().strip('"').split("\\n")
    ours = [frame for frame in frames if frame.strip() and "<frozen" not in frame]
    return [reason, *(frame for frame in ours[:_FRAMES] if frame != "At:")]
