"""`spectool doctor`: what is installed here, which backends can work, and why not."""

from __future__ import annotations

import json
import os
import platform
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from toolkit.commands.options import Json, StoreDir

# What each extra brings, by distribution name, and what it is for.
EXTRAS = {
    "cpu": ("build and run on this machine", ["openvino"]),
    "triton": ("serve from a real Triton", ["nvidia-pytriton", "tritonclient"]),
    "report": ("plots in tune's report", ["plotly"]),
    "tensorrt": ("NVIDIA GPUs", ["tensorrt_llm", "tensorrt"]),
}


def doctor(
    store: StoreDir = None,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Say which drafter works on which backend and release.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say what is installed and what can work here."""
    if matrix:
        _print_matrix(as_json)
        return
    found = examine(store)
    print(json.dumps(found, indent=2) if as_json else _text(found))
    if not any(backend["works"] for backend in found["backends"].values()):
        raise typer.Exit(3)


def _print_matrix(as_json: bool) -> None:
    from toolkit.commands.matrix import markdown, reasons, support

    if as_json:
        print(json.dumps(support(), indent=2))
    else:
        print("\n".join([markdown(), "", *reasons()]))


def examine(store: str | None) -> dict[str, Any]:
    """The machine, the packages and the backends."""
    from toolkit import __version__
    from toolkit.provenance import package_version
    from toolkit.registry import BACKENDS
    from toolkit.store import open_store

    root = open_store(store).root
    there = next(path for path in [root, *root.parents] if path.exists())
    reasons = {name: BACKENDS[name].unavailable() for name in BACKENDS}
    return {
        "spectool": __version__,
        "python": platform.python_version(),
        "machine": {
            "platform": platform.platform(),
            "cpus": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "nvidia_gpus": len(list(Path("/proc/driver/nvidia/gpus").glob("*"))),
        },
        "store": {
            "path": str(root),
            "writable": os.access(there, os.W_OK),
            "free_bytes": shutil.disk_usage(there).free,
        },
        "backends": {
            name: {"works": reason is None, "reason": reason} for name, reason in reasons.items()
        },
        "extras": {
            extra: {
                "for": purpose,
                "packages": {package: package_version(package) for package in packages},
            }
            for extra, (purpose, packages) in EXTRAS.items()
        },
    }


def _text(found: dict[str, Any]) -> str:
    from toolkit.commands.table import size, table

    machine, store = found["machine"], found["store"]
    writable = "" if store["writable"] else ", not writable"
    backends = [
        [f"backend {name}", "works" if state["works"] else f"cannot work: {state['reason']}"]
        for name, state in found["backends"].items()
    ]
    return table(
        [
            ["spectool", f"{found['spectool']} on Python {found['python']}"],
            [
                "machine",
                f"{machine['cpus']} CPU(s), {size(machine['memory_bytes'])} memory, "
                f"{machine['nvidia_gpus']} NVIDIA GPU(s), {machine['platform']}",
            ],
            ["store", f"{store['path']} ({size(store['free_bytes'])} free{writable})"],
            *backends,
            *([f"extra {name}", _extra(name, state)] for name, state in found["extras"].items()),
        ]
    )


def _extra(name: str, state: dict[str, Any]) -> str:
    packages = state["packages"]
    absent = [package for package, version in packages.items() if version is None]
    have = ", ".join(f"{package} {version}" for package, version in packages.items() if version)
    if not absent:
        return f"{have} ({state['for']})"
    lacks = f"{', '.join(absent)} not installed: pip install 'spectool[{name}]' ({state['for']})"
    return f"{have}; {lacks}" if have else lacks
