"""Arguments and options that several commands share, so that they read and work the same."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def complete_recipe(incomplete: str) -> list[str]:
    """Bundled names and YAML files, for the shell's tab key."""
    from toolkit.bundled import bundled

    root = bundled("recipes")
    names = [path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml")]
    parent = Path(incomplete).parent
    files = [str(path) for path in (*parent.glob("*.yaml"), *parent.glob("*/")) if path.name]
    return sorted(found for found in (*names, *files) if found.startswith(incomplete))


RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="Recipe file, or the name of a bundled recipe.",
        autocompletion=complete_recipe,
    ),
]
Recipes = Annotated[
    list[str],
    typer.Argument(
        metavar="RECIPE...",
        help="Recipe files, or names of bundled recipes.",
        autocompletion=complete_recipe,
    ),
]
OptionalRecipe = Annotated[
    str | None,
    typer.Argument(
        metavar="RECIPE",
        help="Recipe; default: ./recipe.yaml, else the one built last.",
        autocompletion=complete_recipe,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Override a recipe field; repeatable."),
]
StoreDir = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="DIR|URL",
        help="Artefact store, or a shared one (s3://, gs://, file://); default: $SPECTOOL_STORE.",
    ),
]
RequireSignature = Annotated[
    bool,
    typer.Option(
        "--require-signature", help="Take from a shared store only what a trusted key signed."
    ),
]
Dialect = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="TOOL",
        help="Acceptance also as vllm, sglang, trtllm-bench, aiperf ... would count it.",
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on", metavar="ray[:HOST:PORT]", help="Run on the nodes of a Ray cluster, not only here."
    ),
]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="CPU threads; default: all cores.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Offline = Annotated[
    bool, typer.Option("--offline", help="Use only what is on this machine; fetch nothing.")
]


def offline_or_environment(offline: bool) -> bool | None:
    """True when asked for; None leaves the choice to SPECTOOL_OFFLINE and HF_HUB_OFFLINE."""
    return True if offline else None
