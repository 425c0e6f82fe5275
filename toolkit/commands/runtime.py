"""From a recipe's name to its models at work: what is missing in the store is built first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from toolkit.commands.options import offline_or_environment

if TYPE_CHECKING:
    from toolkit.backends.runtime import Runtime
    from toolkit.execute import Made


def runtime_of(
    recipe: str,
    override: Sequence[str],
    store: str | None,
    *,
    offline: bool,
    threads: int | None = None,
    url: str | None = None,
) -> Runtime:
    """Load the recipe's engines, or ask the server at `url`; stderr names what had to be built."""
    from toolkit.backends.runtime import connect_runtime, open_runtime
    from toolkit.execute import build
    from toolkit.plan import make_plan
    from toolkit.recipe.load import load_recipe
    from toolkit.store import open_store

    where = open_store(store)
    plan = make_plan(load_recipe(recipe, override), where)
    built = build(plan, where, offline=offline_or_environment(offline), report=_say)
    return connect_runtime(built, url) if url else open_runtime(built, threads=threads)


def _say(made: Made) -> None:
    if not made.entry.cached:
        kind, role = made.artefact.kind.removesuffix("s"), made.artefact.role
        typer.echo(f"built {kind} {role} in {made.seconds:.1f} s", err=True)
