"""`spectool check`: every problem that can be found without a build, all at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

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
    offline: Offline = False,
    as_json: Json = False,
) -> None:
    """Find every problem before a build, with the fix."""
    from toolkit.errors import MissingDependencyError, RecipeError
    from toolkit.preflight import Report, preflight
    from toolkit.recipe.load import load_recipe
    from toolkit.store import Store

    try:
        loaded = load_recipe(recipe, override or ())
    except RecipeError as error:
        if not as_json:
            raise
        report = Report(problems=error.problems)
    else:
        report = preflight(loaded, Store(store), offline=offline_or_environment(offline))
    if as_json:
        print(json.dumps({"recipe": recipe, "ok": report.ok, **vars(report)}, indent=2))
        raise typer.Exit(0 if report.ok else 2 if report.problems else 3)
    if report.problems:
        raise RecipeError(recipe, report.problems + report.missing)
    if report.missing:
        raise MissingDependencyError(f"{recipe}: " + "; ".join(report.missing))
    print(_summary(report))


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
    return "\n".join([table(rows, header, right="  rrrr"), *notes, "no problems found"])
