"""Run a program so that nothing of it outlives whoever asked for it.

    python guard.py PROGRAM ARGUMENT...

The program gets a process group of its own. When stdin closes, because the asker closed it or died
(by whatever signal), the whole group is ended. Standard library only: this file runs by itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

GRACE_S = 3.0  # between asking the group to end and ending it


def main(command: list[str]) -> int:
    """The program's exit code; 128 + N when signal N ended it."""
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127
    watch = threading.Thread(target=_end_when_stdin_closes, args=(child,), daemon=True)
    watch.start()
    code = child.wait()
    _signal(child, signal.SIGKILL)  # workers that their parent left behind
    return code if code >= 0 else 128 - code


def _end_when_stdin_closes(child: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):
        pass
    _signal(child, signal.SIGTERM)
    time.sleep(GRACE_S)
    _signal(child, signal.SIGKILL)


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
