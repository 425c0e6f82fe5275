"""What is wrong with a Triton model repository: all of it at once, before a server starts.

A rule is a function that yields findings; the tables here are all there are. Rules of a model see a
config that parsed; rules of the repository see all of those together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from toolkit.errors import InputError
from toolkit.serving.lint.artefacts import check_manifest, check_paths
from toolkit.serving.lint.bls import check_bls
from toolkit.serving.lint.engines import check_engines
from toolkit.serving.lint.ensemble import check_ensemble
from toolkit.serving.lint.llmapi import check_llmapi
from toolkit.serving.lint.model import (
    check_code,
    check_instances,
    check_map_keys,
    check_name,
    check_tensors,
    check_versions,
)
from toolkit.serving.lint.ours import check_contract, check_parameters
from toolkit.serving.lint.repository import Finding, Model, Repository, read_repository
from toolkit.serving.lint.upstream import check_upstream

__all__ = ["Finding", "lint", "raise_errors"]

MODEL_RULES: Sequence[Callable[[Model], Iterator[Finding]]] = (
    check_name,
    check_versions,
    check_code,
    check_tensors,
    check_instances,
    check_map_keys,
)
REPOSITORY_RULES: Sequence[Callable[[Repository], Iterator[Finding]]] = (
    check_contract,
    check_parameters,
    check_upstream,
    check_ensemble,
    check_bls,
    check_engines,
    check_llmapi,
    check_paths,
    check_manifest,
)


def lint(directory: Path) -> list[Finding]:
    """Every finding, errors first, then by file and line."""
    if not directory.is_dir():
        raise InputError(f"{directory}: not a directory")
    repository, findings = read_repository(directory)
    for model in repository.parsed:
        for rule in MODEL_RULES:
            findings += _named(rule, rule(model))
    for check in REPOSITORY_RULES:
        findings += _named(check, check(repository))
    return sorted(set(findings), key=lambda f: (f.level != "error", f.file, f.line or 0, f.message))


def _named(rule: Callable[..., object], findings: Iterator[Finding]) -> Iterator[Finding]:
    """With the rule's name, which is its function's."""
    name = rule.__name__.removeprefix("check_")
    return (replace(finding, rule=name) for finding in findings)


def raise_errors(directory: Path, findings: Sequence[Finding]) -> None:
    """InputError with every error, if there are any."""
    errors = [str(finding) for finding in findings if finding.level == "error"]
    if errors:
        raise InputError(f"{directory}: {len(errors)} error(s)\n" + "\n".join(errors))
