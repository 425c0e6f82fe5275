"""Build one engine of a recipe from its checkpoint with trtllm-build, and check what came out."""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.engine.trtllm.command import build_command, engine_flags, release_of
from toolkit.engine.trtllm.devices import own_gpus
from toolkit.engine.trtllm.directory import TrtEngine, read_engine
from toolkit.engine.trtllm.limits import Limits, effective_limits
from toolkit.engine.trtllm.machine import Machine, require_machine
from toolkit.engine.trtllm.rules import engine_problems
from toolkit.engine.trtllm.run import run
from toolkit.errors import BuildError, InputError, RecipeError
from toolkit.progress import progress
from toolkit.recipe.release import release
from toolkit.recipe.schema import Recipe
from toolkit.registry import DRAFTERS
from toolkit.store import MANIFEST, Store


def engine_spec(
    checkpoint_digest: str, recipe: Recipe, role: str, machine: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything that changes an engine's bytes: what its digest is taken over."""
    return {
        "engine": "tensorrt",
        "checkpoint": checkpoint_digest,
        "flags": engine_flags(recipe, role),
        **machine,
    }


def planned_limits(recipe: Recipe, role: str) -> Limits:
    """The sizes that the engine will really have, before there is a checkpoint."""
    options = recipe.speculation
    fields = DRAFTERS[options.drafter].checkpoint_fields(options) if role == "target" else {}
    known = {name: value for name, value in fields.items() if value is not None}
    return effective_limits(engine_flags(recipe, role), release_of(recipe), known)


def build_engine(checkpoint_dir: Path, out: Path, recipe: Recipe, role: str, store: Store) -> None:
    """Fill `out`, an empty directory that nobody reads yet."""
    machine = require_machine(recipe)
    pretrained = _checked_config(checkpoint_dir, recipe, role, machine, store)
    parallel = recipe.models()[role].parallel
    key = out.name.partition("-")[0]  # a staging directory is named by the digest
    caches = store.root / "timing"
    cache = caches / f"trt-{machine.tensorrt}-sm_{machine.sm}.cache"
    with (
        tempfile.TemporaryDirectory(prefix="spectool-build-") as area,
        own_gpus(machine.gpus, parallel.tp * parallel.pp, _locks(store)) as gpus,
        progress(f"{role} engine", total=1) as bar,
    ):
        written = Path(area) / "timing.cache"
        command = build_command(
            recipe,
            role,
            checkpoint_dir=checkpoint_dir,
            output_dir=out,
            program=machine.program,
            more={"input_timing_cache": str(cache), "output_timing_cache": str(written)},
        )
        run(
            command,
            log=store.root / "logs" / f"{role}-{key}.log",
            timeout_s=recipe.tensorrt.build_timeout_s,
            cwd=Path(area),
            env={"CUDA_VISIBLE_DEVICES": ",".join(gpus)},
            show=lambda line: bar.describe(f"{role} engine: {line}"),
        )
        if written.is_file():
            _keep(written, cache)
    _check(read_engine_of_build(out), recipe, role, pretrained)


def _locks(store: Store) -> Path:
    """Of this machine's GPUs; other machines may use the same store."""
    return store.root / ".locks" / platform.node()


def read_engine_of_build(out: Path) -> TrtEngine:
    """What the build left; half an engine is the build's failure, not the user's."""
    try:
        return read_engine(out)
    except InputError as error:
        raise BuildError(f"trtllm-build ended well, but {error}") from None


def _checked_config(
    checkpoint_dir: Path, recipe: Recipe, role: str, machine: Machine, store: Store
) -> dict[str, Any]:
    """The checkpoint's config.json, after the rules have seen it and its files are as published."""
    if (checkpoint_dir / MANIFEST).is_file() and (damage := store.damaged(checkpoint_dir)):
        raise InputError(
            f"{checkpoint_dir}: changed after it was converted ({'; '.join(damage)}); remove "
            "this directory and build again"
        )
    pretrained: dict[str, Any] = json.loads((checkpoint_dir / "config.json").read_text("utf-8"))
    problems = [
        f"{'.'.join(map(str, path))}: {text}"
        for path, text in engine_problems(recipe, role, pretrained, final=True, sm=machine.sm)
    ]
    if problems:
        raise RecipeError(f"{recipe.name} ({role})", problems)
    return pretrained


def _check(engine: TrtEngine, recipe: Recipe, role: str, pretrained: Mapping[str, Any]) -> None:
    """Refuse an engine that is not the one that was asked for."""
    wanted = effective_limits(engine_flags(recipe, role), release_of(recipe), pretrained)
    ranks = recipe.models()[role].parallel
    found: dict[str, tuple[Any, Any]] = {
        "release": (release(engine.version), release_of(recipe)),
        "world_size": (engine.world_size, ranks.tp * ranks.pp),
        "speculative_decoding_mode": (engine.build["speculative_decoding_mode"], wanted.mode),
        "max_draft_len": (engine.max_draft_len, wanted.max_draft_len),
        "max_seq_len": (engine.build["max_seq_len"], wanted.max_seq_len),
    }
    wrong = [f"{name} is {is_}, expected {was}" for name, (is_, was) in found.items() if is_ != was]
    if wrong:
        raise BuildError(f"trtllm-build wrote another engine than asked for: {'; '.join(wrong)}")


def _keep(written: Path, cache: Path) -> None:
    """The timing cache for the next build, replaced in one step: builds may run side by side."""
    cache.parent.mkdir(parents=True, exist_ok=True)
    staged = cache.with_name(f".{cache.name}.{written.parent.name}")
    staged.write_bytes(written.read_bytes())
    staged.replace(cache)
