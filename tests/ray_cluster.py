"""A Ray cluster of three nodes on this machine, each a process of its own with made-up GPUs."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engine.trtllm.installation import FakeInstallation

ROOT = Path(__file__).parents[1]
GPUS = 2  # of a node
LABELS = {"spectool.gpu": "sm_90", "spectool.tensorrt_llm": "1.2.1"}


class RayCluster:
    """`address` of the head; all nodes have the made-up TensorRT-LLM of one installation."""

    def __init__(self, root: Path) -> None:
        from ray.cluster_utils import Cluster

        patch = pytest.MonkeyPatch()
        try:
            self.installation = FakeInstallation(root / "machine", patch)
            self.installation.gpus(*["9.0"] * 64)
            self.path = os.environ["PATH"]
        finally:
            patch.undo()
        self.calls = root / "machine" / "calls"
        self._numbers = itertools.count()
        self.pace(0.0)
        head = self._node()
        self.cluster = Cluster(
            initialize_head=True, head_node_args={**head, "include_dashboard": False}
        )
        self.address: str = self.cluster.address
        for _ in range(2):
            self.cluster.add_node(wait=False, **self._node())
        self.cluster.wait_for_nodes(timeout=120)

    def _node(
        self, labels: dict[str, str] | None = None, gpus: int = GPUS, cpus: int = 2
    ) -> dict[str, Any]:
        """Each node sees GPUs of its own of the one machine, as its shares of a large one would."""
        number = next(self._numbers)
        visible = ",".join(str(number * GPUS + i) for i in range(gpus))
        return {
            "num_cpus": cpus,
            "num_gpus": gpus,
            "object_store_memory": 80 << 20,
            "labels": {**LABELS, **(labels or {})},
            "env_vars": {
                "PATH": self.path,
                "PYTHONPATH": str(ROOT),
                "FAKE_CALLS": str(self.calls),
                "FAKE_MODE": "told",
                "CUDA_VISIBLE_DEVICES": visible,
                "SPECTOOL_OFFLINE": "1",
                "RAY_USAGE_STATS_ENABLED": "0",
            },
        }

    @contextmanager
    def another(self, **options: Any) -> Iterator[Any]:
        """One more node for the time of a test; it may be killed meanwhile."""
        arguments = self._node(**options)
        node = self.cluster.add_node(**arguments)
        node.gpus = set(arguments["env_vars"]["CUDA_VISIBLE_DEVICES"].split(","))
        try:
            yield node
        finally:
            if node in self.cluster.list_all_nodes():
                self.cluster.remove_node(node, allow_graceful=False)

    def kill(self, node: Any) -> None:
        self.cluster.remove_node(node, allow_graceful=False)

    def busy(self, node: Any) -> bool:
        """Whether a build runs on one of the node's GPUs."""
        return any(node.gpus & set(call["gpus"].split(",")) for call in self._begun())

    def pace(self, seconds_per_megabyte: float) -> None:
        """How long a build takes; forgets the builds so far."""
        self.calls.unlink(missing_ok=True)
        self.calls.with_name("pace").write_text(str(seconds_per_megabyte))

    @contextmanager
    def failing(self, mode: str) -> Iterator[None]:
        """Builds end in one of the made-up program's other ways."""
        path = self.calls.with_name("mode")
        path.write_text(mode)
        try:
            yield
        finally:
            path.unlink()

    @property
    def builds(self) -> Counter[str]:
        """Digest -> how often its engine was begun."""
        outs = (
            Path(call["argv"][call["argv"].index("--output_dir") + 1]) for call in self._begun()
        )
        return Counter(out.name[:32] for out in outs)

    def _begun(self) -> list[dict[str, Any]]:
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [json.loads(line) for line in lines]

    def shutdown(self) -> None:
        self.cluster.shutdown()
