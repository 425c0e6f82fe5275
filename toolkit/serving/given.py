"""Engines and a tokenizer that lie somewhere, in place of those that a build would leave."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toolkit.backends.interfaces import LoadingBackend
from toolkit.engine.built import BuiltModels
from toolkit.errors import InputError, did_you_mean
from toolkit.recipe.schema import Recipe
from toolkit.registry import BACKENDS


def given_models(
    recipe: Recipe,
    engines: Sequence[str],  # ROLE=DIR
    tokenizer: Path | None,
) -> BuiltModels:
    """The recipe with these directories; InputError with everything that is missing or unknown."""
    loads = issubclass(BACKENDS[recipe.backend], LoadingBackend)  # weights as they are: a directory
    roles = ("target",) if loads else tuple(recipe.models())
    found, problems = _by_role(engines, roles)
    problems += [f"--engine {role}=DIR is missing" for role in roles if role not in found]
    problems += [
        f"--engine {role}: {path} is not a directory"
        for role, path in found.items()
        if not path.is_dir()
    ]
    if tokenizer is None and not loads:
        problems.append("--tokenizer DIR is missing: a directory with tokenizer.json")
    elif tokenizer is not None and not (tokenizer / "tokenizer.json").is_file():
        problems.append(f"--tokenizer: no tokenizer.json in {tokenizer}")
    if problems:
        raise InputError("\n".join(problems))
    places = {} if tokenizer is None else dict.fromkeys(found, tokenizer.absolute())
    return BuiltModels(recipe, found, places)


def _by_role(engines: Sequence[str], roles: Sequence[str]) -> tuple[dict[str, Path], list[str]]:
    found: dict[str, Path] = {}
    problems = []
    for text in engines:
        role, equals, path = text.partition("=")
        if not equals or not path:
            problems.append(f"--engine {text}: write ROLE=DIR, like target=/engines/target")
        elif role not in roles:
            hint = did_you_mean(role, roles)
            problems.append(f"--engine {text}: no role {role!r}{hint} ({', '.join(roles)})")
        elif role in found:
            problems.append(f"--engine {role} is given twice")
        else:
            found[role] = Path(path).expanduser().absolute()
    return {role: found[role] for role in roles if role in found}, problems
