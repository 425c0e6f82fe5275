"""`--on ray[:ADDRESS]` as the user writes it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from toolkit.errors import InputError, did_you_mean

EXAMPLES = "ray (the cluster of this machine, or $RAY_ADDRESS) or ray:HOST:PORT"


@dataclass(frozen=True)
class RayAddress:
    """Where a cluster's head listens; no host: whatever cluster this machine belongs to."""

    host: str | None = None
    port: int = 0

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.host else "auto"


def parse_on(text: str) -> RayAddress:
    """The address, or what may stand there."""
    engine, _, address = text.partition(":")
    if engine != "ray":
        raise InputError(f"--on {text}: expected {EXAMPLES}{did_you_mean(engine, ['ray'])}")
    address = address or os.environ.get("RAY_ADDRESS", "")
    if address in ("", "auto"):
        return RayAddress()
    if "//" in address:
        raise InputError(
            f"--on {text}: Ray Client addresses have no node of their own; run spectool on a "
            f"machine of the cluster, with {EXAMPLES}"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"--on {text}: {address!r} is no HOST:PORT; expected {EXAMPLES}")
    return RayAddress(host, int(port))
