"""Plan and build engines with trtllm-build."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.backends.interfaces import DEFAULT_CACHE, Backend, CacheOptions
from toolkit.engine.trtllm.build import build_engine, engine_spec, planned_limits
from toolkit.engine.trtllm.command import build_command, engine_flags, takes_drafts
from toolkit.engine.trtllm.gpus import architecture, shown
from toolkit.engine.trtllm.machine import find_machine, require_machine
from toolkit.errors import SpectoolError
from toolkit.recipe.schema import EngineLimits, Recipe
from toolkit.store import Store

if TYPE_CHECKING:
    from toolkit.backends.runtime import Runtime
    from toolkit.checkpoint.tokenizer import Tokenizer
    from toolkit.engine.built import BuiltModels


class TensorrtBackend(Backend):
    """Engines are planned anywhere, and built where trtllm-build and a GPU are."""

    builds_elsewhere = True
    machine_keys = ("tensorrt_llm", "tensorrt", "cuda", "gpu")
    releases = ("0.16.0", "0.20.0", "1.0.0", "1.2.1")

    @staticmethod
    def unavailable() -> str | None:
        try:
            find_machine()
        except SpectoolError as error:
            return f"'tensorrt' cannot work here: {error}"
        return None

    @staticmethod
    def require(recipe: Recipe) -> None:
        require_machine(recipe)

    @staticmethod
    def check(config: Mapping[str, Any], limits: EngineLimits, where: str) -> None:
        """trtllm-build takes any length; the rules of engine/trtllm look at everything else."""

    @staticmethod
    def engine_spec(
        checkpoint_digest: str, recipe: Recipe, role: str, machine: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        try:
            machine = machine or require_machine(recipe).spec()
        except SpectoolError:
            return None  # `build` says why
        return engine_spec(checkpoint_digest, recipe, role, machine)

    @staticmethod
    def builder(recipe: Recipe) -> Mapping[str, str]:
        wanted = architecture(recipe.tensorrt.gpu or "")
        gpu = {} if wanted is None else {"gpu": shown(wanted)}
        return {"tensorrt_llm": recipe.tensorrt_llm, **gpu}

    @staticmethod
    def gpus(recipe: Recipe, role: str) -> int:
        parallel = recipe.models()[role].parallel
        return parallel.tp * parallel.pp

    @staticmethod
    def machine() -> Mapping[str, Any]:
        try:
            return find_machine().spec()
        except SpectoolError:
            return {}

    @staticmethod
    def engine_command(recipe: Recipe, role: str) -> str:
        command = build_command(
            recipe, role, checkpoint_dir=f"checkpoints/{role}", output_dir=f"engines/{role}"
        )
        return shlex.join(command)

    @staticmethod
    def untunable(recipe: Recipe) -> str | None:
        if takes_drafts(recipe):
            return None
        return (
            f"an engine with {recipe.speculation.drafter} inside always drafts as it was built, "
            "and never decodes plainly; serve it and one with drafter: none, and compare them "
            "with spectool bench"
        )

    @staticmethod
    def untraceable(recipe: Recipe) -> str | None:
        if recipe.tune.sampling.temperature > 0:
            return "engines show no probabilities, without which only greedy texts can be traced"
        if getattr(recipe.speculation, "use_draft_logits", False):
            return "engines show no logits, by which use_draft_logits accepts"
        return None

    @staticmethod
    def engine_notes(recipe: Recipe, role: str) -> tuple[str, ...]:
        limits = planned_limits(recipe, role)
        changes = limits.changes(engine_flags(recipe, role))
        tokens = f"max_num_tokens is {limits.max_num_tokens}"
        notes = [f"{role} engine: {'; '.join([*changes, tokens])}"]
        try:
            require_machine(recipe)
        except SpectoolError as error:
            notes += [f"engine digests are not known here: {line}" for line in _lines(error)]
        return tuple(notes)

    def open(
        self,
        built: BuiltModels,
        tokenizer: Tokenizer,
        *,
        threads: int | None,
        cache: CacheOptions = DEFAULT_CACHE,
    ) -> Runtime:
        from toolkit.backends.tensorrt.runtime import open_engines

        return open_engines(built, tokenizer)

    @staticmethod
    def build_engine(
        checkpoint_dir: Path, out: Path, recipe: Recipe, role: str, store: Store
    ) -> None:
        build_engine(checkpoint_dir, out, recipe, role, store)


def _lines(error: SpectoolError) -> list[str]:
    return str(error).splitlines()
