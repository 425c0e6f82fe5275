"""`spectool tune --url K=URL`: deployments that run already, one for each draft length."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

if TYPE_CHECKING:
    from toolkit.recipe.schema import Recipe

Urls = Annotated[
    list[str] | None,
    typer.Option(
        "--url",
        metavar="K=URL",
        help="Measure servers that run the recipe, each with the draft length that it was started "
        "with (0: without speculation). Repeatable; nothing is loaded here.",
    ),
]
EXAMPLE = "--url 0=http://127.0.0.1:8000 --url 3=http://127.0.0.1:8001"


def urls_by_length(words: Sequence[str]) -> dict[int, str]:
    """Draft length -> address, the shortest first; InputError with all that is wrong."""
    from toolkit.errors import InputError

    found: dict[int, str] = {}
    problems = []
    for word in words:
        length, equals, url = word.partition("=")
        if not (equals and url and re.fullmatch(r"[0-9]{1,4}", length)):
            problems.append(f"--url {word}: expected a draft length, = and an address")
        elif int(length) in found:
            problems.append(f"--url {word}: {length} has an address already: {found[int(length)]}")
        else:
            found[int(length)] = url
    if not problems and 0 not in found:
        problems.append("--url: none of them is without speculation (0=URL), to compare with")
    if not problems and len(found) < 2:
        problems.append("--url: only plain decoding; name a server that drafts as well")
    if problems:
        raise InputError("\n".join([*problems, f"an example: {EXAMPLE}"]))
    return dict(sorted(found.items()))


def without_password(url: str) -> str:
    """For files: who reads a result need not be told."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def refuse_beside_urls(
    recipe: Recipe, *, k: str | None, mode: str | None, log: Path | None, on: str | None
) -> None:
    """Options that servers which run already leave no room for."""
    from toolkit.errors import InputError
    from toolkit.registry import BACKENDS

    excluded = {
        "--k": (k, "the draft lengths are those of --url"),
        "--mode trace": (mode == "trace", "servers show no logits to read a trace from"),
        "--log": (log, "only a trace reads logs"),
        "--on": (on, "servers are measured from here"),
    }
    problems = [
        f"{option} and --url exclude each other: {reason}"
        for option, (given, reason) in excluded.items()
        if given
    ]
    if not BACKENDS[recipe.backend].connects:
        problems.append(
            f"backend {recipe.backend!r} is not asked over the network here; leave --url out"
        )
    if problems:
        raise InputError("\n".join(problems))
