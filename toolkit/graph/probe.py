"""What a machine says of itself when it is asked, before any step is sent to it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolkit import __version__
from toolkit.measure.machine import machine
from toolkit.registry import BACKENDS


def labels_here() -> dict[str, str]:
    """What every step asks of a machine: the same program on the same Python."""
    major, minor, _ = platform.python_version_tuple()
    return {"python": f"{major}.{minor}", "spectool": __version__}


def facts(paths: Sequence[str], seen: str | None) -> dict[str, Any]:
    """`machines`: what each backend's engines take from this one; `paths`: those that are here.

    `seen` is a file that the asker has just written into the store; None: the store has a URL.
    """
    with _all_gpus():
        machines = {name: dict(BACKENDS[name].machine()) for name in BACKENDS}
    return {
        "machines": machines,
        "labels": {**labels_here(), **flat(machines)},
        "processor": machine(),
        "paths": [path for path in paths if Path(path).exists()],
        "store": seen is None or Path(seen).is_file(),
    }


def flat(machines: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The machine of every backend as labels."""
    return {
        name: str(value)
        for machine in machines.values()
        for name, value in machine.items()
        if value is not None
    }


@contextmanager
def _all_gpus() -> Iterator[None]:
    """A step that asked for no GPU is shown none; what there are is asked here all the same."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden != "":
        yield
        return
    del os.environ["CUDA_VISIBLE_DEVICES"]
    try:
        yield
    finally:
        os.environ["CUDA_VISIBLE_DEVICES"] = hidden
