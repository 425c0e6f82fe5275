"""Backend `cpu`: engines that run on any machine."""

from __future__ import annotations

from pathlib import Path

from toolkit.backends.cpu.model import CpuModel
from toolkit.engine.cpu import build_cpu_engine, engine_spec
from toolkit.engine.directory import read_engine


class CpuBackend:
    """Builds engines from checkpoints and loads them."""

    engine_spec = staticmethod(engine_spec)
    build_engine = staticmethod(build_cpu_engine)

    def load(
        self,
        engine_dir: Path,
        *,
        threads: int | None = None,
        kv_cache_bytes: int | None = None,
    ) -> CpuModel:
        """A language model ready to open sequences; KV memory is half the machine's at most."""
        return CpuModel(read_engine(engine_dir), threads=threads, kv_cache_bytes=kv_cache_bytes)
