"""The regions in /dev/shm between a server and its stubs; a server that is killed leaves them."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from pathlib import Path

DIRECTORY = Path("/dev/shm")
_NAME = re.compile(r"spectool_(?P<pid>\d+)_")
_LITTLE = 128 << 20  # Docker gives 64 MiB unless told otherwise; logits alone can fill that


def new_prefix() -> str:
    """Names the process that will clean up, so that a later one can tell whether it still might."""
    return f"spectool_{os.getpid()}_{secrets.token_hex(3)}_"


def remove(prefix: str) -> None:
    for region in DIRECTORY.glob(f"{prefix}*"):
        region.unlink(missing_ok=True)


def remove_stale() -> None:
    """Drop what servers left behind whose spectool process is gone."""
    for region in DIRECTORY.glob("spectool_*"):
        match = _NAME.match(region.name)
        if match and not Path(f"/proc/{match['pid']}").exists():
            region.unlink(missing_ok=True)


def warning() -> str | None:
    """A sentence when there is too little of it for comfort."""
    try:
        free = shutil.disk_usage(DIRECTORY).free
    except OSError:
        return f"{DIRECTORY} is missing; Triton's Python models need shared memory"
    if free >= _LITTLE:
        return None
    return (
        f"{DIRECTORY} has {free >> 20} MiB free; models talk through it "
        "(docker run --shm-size=1g gives more)"
    )
