"""Backend `cpu`: engines that run on any machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.backends.cpu.blocks import memory_budget
from toolkit.backends.cpu.heads import load_head
from toolkit.backends.cpu.model import CpuModel
from toolkit.backends.interfaces import DEFAULT_CACHE, Backend, CacheOptions
from toolkit.engine.cpu import (
    build_cpu_engine,
    captured_for,
    check_limits,
    engine_spec,
    machine_spec,
    openvino_version,
)
from toolkit.engine.directory import read_engine
from toolkit.engine.heads.build import build_head_engine
from toolkit.engine.settings import decoder_settings
from toolkit.errors import MissingDependencyError
from toolkit.recipe.schema import EngineLimits, HeadSource, Recipe
from toolkit.registry import DRAFTERS
from toolkit.store import Store

if TYPE_CHECKING:
    from toolkit.backends.runtime import Runtime
    from toolkit.checkpoint.tokenizer import Tokenizer
    from toolkit.engine.built import BuiltModels


class CpuBackend(Backend):
    """Builds and loads engines on OpenVINO."""

    needs_floats = True
    shows_logits = True
    machine_keys = ("engine_version", "openvino")

    @staticmethod
    def unavailable() -> str | None:
        """Why engines can neither be built nor run on this machine; None when they can."""
        if openvino_version() is None:
            return "'cpu' needs openvino; install it with: pip install 'spectool[cpu]'"
        return None

    @staticmethod
    def require(recipe: Recipe) -> None:
        if reason := CpuBackend.unavailable():
            raise MissingDependencyError(f"backend {reason}")

    @staticmethod
    def check(config: Mapping[str, Any], limits: EngineLimits, where: str) -> None:
        """Refuse what a build would refuse, from a checkpoint's config.json alone."""
        check_limits(decoder_settings(config, where), limits)

    @staticmethod
    def engine_spec(
        checkpoint_digest: str, recipe: Recipe, role: str, machine: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        captured = captured_for(recipe, "target" if role == "heads" else role)
        spec = engine_spec(checkpoint_digest, recipe.engine, captured, machine)
        return {**spec, "head": recipe.speculation.drafter} if role == "heads" else spec

    @staticmethod
    def engine_heads(recipe: Recipe) -> HeadSource | None:
        heads: HeadSource | None = DRAFTERS[recipe.speculation.drafter].cpu_heads(
            recipe.speculation
        )
        return heads

    @staticmethod
    def machine() -> Mapping[str, Any]:
        return machine_spec()

    @staticmethod
    def engine_command(recipe: Recipe, role: str) -> str:
        limits = recipe.engine.model_dump(exclude_none=True)
        sizes = " ".join(f"{name}={value}" for name, value in limits.items())
        return f"build engine (cpu) checkpoints/{role} -> engines/{role} {sizes}"

    @staticmethod
    def build_engine(
        checkpoint_dir: Path, out: Path, recipe: Recipe, role: str, store: Store
    ) -> None:
        if role == "heads":
            build_head_engine(checkpoint_dir, out, recipe)
            return
        build_cpu_engine(checkpoint_dir, out, recipe.engine, captured_for(recipe, role))

    def open(
        self,
        built: BuiltModels,
        tokenizer: Tokenizer,
        *,
        threads: int | None,
        cache: CacheOptions = DEFAULT_CACHE,
    ) -> Runtime:
        from toolkit.backends.runtime import Runtime

        engines = dict(built.engines)
        heads = engines.pop("heads", None)
        budget = memory_budget() if cache.max_bytes is None else cache.max_bytes
        models: dict[str, Any] = {
            role: self.load(
                path,
                threads=threads,
                kv_cache_bytes=budget // len(engines),
                share_prefixes=cache.share_prefixes,
            )
            for role, path in engines.items()
        }
        if heads:
            models["heads"] = load_head(heads, models["target"], threads=threads)
        return Runtime(recipe=built.recipe, models=models, tokenizer=tokenizer)

    def load(
        self,
        engine_dir: Path,
        *,
        threads: int | None = None,
        kv_cache_bytes: int | None = None,
        share_prefixes: bool = False,
    ) -> CpuModel:
        """A language model ready to open sequences; KV memory is half the machine's at most."""
        return CpuModel(
            read_engine(engine_dir),
            threads=threads,
            kv_cache_bytes=kv_cache_bytes,
            share_prefixes=share_prefixes,
        )
