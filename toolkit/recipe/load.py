"""From the name of a recipe to a `Recipe`: every problem at once, each with its place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from toolkit.bundled import bundled
from toolkit.errors import InputError, RecipeError, did_you_mean
from toolkit.recipe.explain import explain, place
from toolkit.recipe.merge import apply_overrides, merge
from toolkit.recipe.paths import resolve_paths
from toolkit.recipe.rules import broken_rules, names_that_nothing_has
from toolkit.recipe.schema import Recipe
from toolkit.recipe.yaml_lines import Document, Problem, Where, parse_document, read_text


def load_recipe(name_or_path: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a file, or the bundled one of that name, with `--set` overrides on top."""
    document = apply_overrides(_read(find_recipe(name_or_path), ()), overrides)
    recipe, problems = _validate(document)
    if recipe is None or problems:
        problems.sort(key=lambda problem: problem.where or Where(0, 0, ""))
        raise RecipeError(name_or_path, list(dict.fromkeys(map(str, problems))))
    return recipe


def dump_recipe(recipe: Recipe) -> str:
    """YAML that loads back to the same recipe; every default is written out, paths absolute."""
    data = recipe.model_dump(mode="json")
    return str(
        yaml.dump(
            data,
            Dumper=_Dumper,
            sort_keys=False,
            allow_unicode=True,
            default_flow_style=None,
            width=100,
        )
    )


class _Dumper(yaml.SafeDumper):
    """Writes text with exotic line ends in double quotes; plain, YAML would fold them away."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style='"' if set(text) & set("\x85\u2028\u2029") else None
    ),
)


def bundled_recipes() -> dict[str, Path]:
    """Name -> file of every recipe that comes with spectool."""
    root = bundled("recipes")
    return {
        path.relative_to(root).with_suffix("").as_posix(): path
        for path in sorted(root.rglob("*.yaml"))
    }


def names_recipe(text: str) -> bool:
    """Whether `text` means a recipe rather than a checkpoint."""
    return text.endswith((".yaml", ".yml")) or text in bundled_recipes()


def find_recipe(name: str, relative_to: Path | None = None) -> Path:
    """The file that a name or path means; a file wins over a bundled recipe of that name."""
    path = (relative_to or Path()) / Path(name).expanduser()
    if path.is_file():
        return path
    shipped = bundled_recipes()
    if (found := shipped.get(name.removesuffix(".yaml"))) is not None:
        return found
    if path.is_dir():
        raise InputError(f"{name}: is a directory; a recipe is one YAML file")
    raise InputError(
        f"{name}: no such file, and no bundled recipe of that name"
        f"{did_you_mean(name, shipped)} (`spectool recipes` lists them)"
    )


def _read(path: Path, chain: tuple[Path, ...]) -> Document:
    """One file on top of what it extends; `chain` is who extends whom so far."""
    here = path.resolve()
    if here in chain:
        names = " -> ".join(step.name for step in (*chain, here))
        raise InputError(f"{path}: extends goes round in a circle: {names}")
    document = parse_document(read_text(path), str(path), source=len(chain))
    extends = document.data.pop("extends", None)
    document.data = resolve_paths(document.data, here.parent)
    if extends is None:
        return document
    if not isinstance(extends, str):
        text = "expected the path or the bundled name of one recipe"
        document.problems.append(Problem(("extends",), text, document.where[("extends",)]))
        return document
    try:
        base = find_recipe(extends, here.parent)
    except InputError as error:
        problem = Problem(("extends",), str(error), document.where[("extends",)])
        document.problems.append(problem)
        return document
    return merge(_read(base, (*chain, here)), document)


def _validate(document: Document) -> tuple[Recipe | None, list[Problem]]:
    unusable = names_that_nothing_has(document.data)
    problems = [
        *document.problems,
        *(Problem(path, text, place(path, document.where)) for path, text in unusable.items()),
    ]
    try:
        # Strict, so that `yes` is no number and '4' no count: YAML already knows its types.
        recipe = Recipe.model_validate(
            _tuples(document.data), strict=True, context={"strict": True}
        )
    except ValidationError as error:
        known = {problem.path for problem in problems}
        drafterless = ("speculation", "drafter") in unusable
        for problem in explain(error, document.data, document.where):
            # Without a drafter nobody can say which other keys its section may have.
            guess = drafterless and problem.path[:1] == ("speculation",)
            if problem.path not in known and not guess:
                problems.append(problem)
        return None, problems
    if unusable:
        return None, problems  # the rules ask the drafter, and there is none
    broken = [
        Problem(path, text, place(path, document.where)) for path, text in broken_rules(recipe)
    ]
    return recipe, problems + broken


def _tuples(value: Any) -> Any:
    """Lists as tuples, which is what the frozen schema holds."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    return value
