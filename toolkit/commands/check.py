"""`spectool check`: every problem that can be found without a build, all at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolkit.commands.options import (
    Json,
    Offline,
    Overrides,
    RecipeArgument,
    StoreDir,
    offline_or_environment,
)

if TYPE_CHECKING:
    from toolkit.preflight import Report


def check(
    recipe: RecipeArgument,
    override: Overrides = None,
    store: StoreDir = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE=DIR", help="Also check a ready engine directory; repeatable."),
    ] = None,
    repo: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also lint a Triton model repository.")
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Budget the memory of this GPU (h100, a100-40gb, ...)."),
    ] = None,
    gpu_memory: Annotated[
        float | None, typer.Option(min=0.1, metavar="GIB", help="The same by memory size.")
    ] = None,
    fetch: Annotated[
        bool,
        typer.Option("--fetch", help="Fetch what is not on this machine yet, to check it too."),
    ] = False,
    offline: Offline = False,
    as_json: Json = False,
) -> None:
    """Find every problem before a build, with the fix.

    Nothing is fetched unless you say --fetch: what lies elsewhere is named and left unchecked.
    """
    from toolkit.errors import MissingDependencyError, RecipeError
    from toolkit.preflight import Report, preflight
    from toolkit.recipe.load import load_recipe
    from toolkit.store import open_store

    try:
        loaded = load_recipe(recipe, override or ())
    except RecipeError as error:
        if not as_json:
            raise
        report = Report(problems=error.problems)
    else:
        report = preflight(
            loaded,
            open_store(store),
            fetch=fetch,
            offline=offline_or_environment(offline),
            engines=_by_role(engine or ()),
            repository=repo,
            gpu=gpu,
            gpu_memory=gpu_memory,
        )
    if as_json:
        print(json.dumps({"recipe": recipe, "ok": report.ok, **vars(report)}, indent=2))
        raise typer.Exit(0 if report.ok else 2 if report.problems else 3)
    if report.problems:
        raise RecipeError(recipe, report.problems + report.missing)
    if report.missing:
        raise MissingDependencyError(f"{recipe}: " + "; ".join(report.missing))
    print(_summary(report))


def _by_role(engines: Sequence[str]) -> dict[str, Path]:
    """`target=DIR` as {"target": DIR}."""
    from toolkit.errors import InputError

    found = {}
    for text in engines:
        role, separator, directory = text.partition("=")
        if not separator or not role or not directory:
            raise InputError(f"--engine {text!r}: expected ROLE=DIR, for example target=engines/t")
        found[role] = Path(directory)
    return found


def _summary(report: Report) -> str:
    from toolkit.commands.table import table

    rows = [
        [
            role,
            config["architecture"].removesuffix("ForCausalLM"),
            f"{config['num_hidden_layers']}",
            f"{config['hidden_size']}",
            f"{config['num_attention_heads']}/{config['num_key_value_heads']}",
            f"{config['vocab_size']}",
            config["dtype"],
        ]
        for role, config in report.models.items()
    ]
    header = ("role", "family", "layers", "hidden", "heads/kv", "vocab", "dtype")
    notes = [f"note: {note}" for note in report.notes]
    models = [table(rows, header, right="  rrrr")] if rows else []
    memory = _memory(report.memory) if report.memory else []
    return "\n".join([*models, *memory, *notes, "no problems found"])


def _memory(budget: Mapping[str, Any]) -> list[str]:
    """Engines in load order, and the largest batch that fits."""
    from toolkit.commands.table import table

    rows = [
        [
            engine["role"],
            *(_gib(engine[f"{part}_bytes"]) for part in ("weights", "activations", "logits")),
            _gib(engine["kv_pool_bytes"]),
            f"{engine['max_tokens_in_paged_kv_cache']}",
            f"{engine['kv_cache_free_gpu_mem_fraction']:.2f}",
        ]
        for engine in budget["engines"]
    ]
    header = ("GiB", "weights", "activations", "logits", "KV pool", "KV tokens", "of free")
    return [
        "",
        f"memory of one {budget['gpu']} ({_gib(budget['total_bytes'])} GiB, "
        f"{_gib(budget['reserved_bytes'])} reserved), estimated, in load order:",
        table(rows, header, right=" rrrrrr"),
        f"largest batch that fits at full length: {budget['largest_batch_that_fits']} "
        f"(engine.max_batch_size {budget['max_batch_size']})",
        "",
    ]


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f}"
