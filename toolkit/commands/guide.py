"""A grammar on the command line: one of four options, each a type that TensorRT-LLM knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.errors import InputError

if TYPE_CHECKING:
    from toolkit.speculation.grammar import Guide

JsonSchema = Annotated[
    Path | None,
    typer.Option("--json-schema", metavar="FILE", help="Answer in JSON that this schema allows."),
]
Regex = Annotated[
    str | None, typer.Option("--regex", metavar="TEXT", help="Answer what this matches whole.")
]
Ebnf = Annotated[
    Path | None,
    typer.Option("--ebnf", metavar="FILE", help="Answer in this grammar (root ::= ...)."),
]
AnyJson = Annotated[bool, typer.Option("--any-json", help="Answer with any JSON object or array.")]


def guide_given(
    json_schema: Path | None, regex: str | None, ebnf: Path | None, any_json: bool
) -> Guide | None:
    """The one that was given; None: the recipe decides."""
    from toolkit.speculation.grammar import Guide, read_guide

    found = []
    if json_schema is not None:
        found.append(Guide("json_schema", read_guide(json_schema)))
    if regex is not None:
        found.append(Guide("regex", regex))
    if ebnf is not None:
        found.append(Guide("ebnf_grammar", read_guide(ebnf)))
    if any_json:
        found.append(Guide("json"))
    if len(found) > 1:
        raise InputError("--json-schema, --regex, --ebnf and --any-json exclude each other")
    return found[0] if found else None
