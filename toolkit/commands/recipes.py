"""`spectool recipes`: what comes with spectool, to run by name or to copy and change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from toolkit.commands.options import Json


def recipes(
    copy: Annotated[
        tuple[str, Path] | None,
        typer.Option("--copy", metavar="NAME DEST", help="Write one recipe to DEST, to change it."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the bundled recipes, or copy one."""
    if copy:
        _copy(*copy)
        return
    from toolkit.commands.table import table
    from toolkit.recipe.load import bundled_recipes

    found = {name: _first_comment(path) for name, path in bundled_recipes().items()}
    if as_json:
        print(json.dumps([{"name": name, "about": about} for name, about in found.items()]))
    else:
        print(table(list(found.items())))


def _first_comment(path: Path) -> str:
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip()


def _copy(name: str, destination: Path) -> None:
    from toolkit.commands.write_new import write_new
    from toolkit.errors import InputError, did_you_mean
    from toolkit.recipe.load import bundled_recipes

    shipped = bundled_recipes()
    name = name.removesuffix(".yaml")
    if name not in shipped:
        raise InputError(f"no bundled recipe {name!r}{did_you_mean(name, shipped)}")
    text = shipped[name].read_text(encoding="utf-8")
    if destination.is_dir():
        destination = destination / f"{Path(name).stem}.yaml"
    write_new(destination, text)
    print(f"{destination} written; try: spectool check {destination}")
