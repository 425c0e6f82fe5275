"""`spectool lint`: what is wrong with a model repository, before a server says less of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from toolkit.commands.options import Json


def lint(
    repository: Annotated[Path, typer.Argument(metavar="DIR", help="Model repository.")],
    as_json: Json = False,
    as_sarif: Annotated[
        bool, typer.Option("--sarif", help="Print SARIF 2.1.0, for code hosts and editors.")
    ] = False,
) -> None:
    """Check a Triton model repository without starting it."""
    from toolkit.serving.lint import lint as find
    from toolkit.serving.lint.sarif import to_sarif

    findings = find(repository)
    errors = sum(finding.level == "error" for finding in findings)
    if as_sarif:
        print(json.dumps(to_sarif(repository, findings), indent=2))
    elif as_json:
        document = {
            "repository": str(repository),
            "errors": errors,
            "warnings": len(findings) - errors,
            "findings": [finding.to_json() for finding in findings],
        }
        print(json.dumps(document, indent=2))
    else:
        for finding in findings:
            print(finding)
        print(f"{errors} error(s), {len(findings) - errors} warning(s)")
    if errors:
        raise typer.Exit(2)
