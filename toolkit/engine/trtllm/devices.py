"""GPUs for builds that run side by side: each build has its own for as long as it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

_POLL_S = 0.5


@contextmanager
def own_gpus(gpus: Sequence[str], wanted: int, locks: Path) -> Iterator[tuple[str, ...]]:
    """At least one of `gpus`, and up to `wanted` if they are free; waits for the first.

    Nobody waits while holding one, so builds cannot wait for each other in a circle.
    """
    locks.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        mine: list[str] = []
        while not mine:
            for gpu in gpus:
                lock = FileLock(locks / f"gpu-{gpu.replace('/', '_')}.lock", timeout=0)
                try:
                    held.enter_context(lock)
                except Timeout:
                    continue
                mine.append(gpu)
                if len(mine) == wanted:
                    break
            if not mine:
                time.sleep(_POLL_S)
        yield tuple(mine)
