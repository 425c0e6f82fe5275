"""Findings as SARIF 2.1.0, which code hosts and editors show beside the lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from toolkit import __version__
from toolkit.serving.lint.repository import Finding

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
# What each rule looks at, by the name that its findings carry.
RULES = {
    "config": "config.pbtxt is there, is text and parses; no placeholder is left over",
    "name": "a model is called as its directory",
    "versions": "a model has the versions that it is asked for",
    "code": "backend, platform and model code are there and fit together",
    "tensors": "inputs and outputs have names, types and dims, each once",
    "instances": "instances are ones that this machine can run",
    "map_keys": "no parameter and no mapped tensor is written twice",
    "contract": "tensors of spectool's models are those that their code reads and writes",
    "parameters": "parameters of spectool's models are known, present and well-formed",
    "upstream": "NVIDIA's templates are filled, spelt and combined as their code takes them",
    "ensemble": "each tensor of an ensemble has one source, and both of its ends agree",
    "bls": "a BLS model finds the models that it calls, in the parts that they play",
    "engines": "parameters, GPUs, ranks and KV memory of TensorRT-LLM engines",
    "llmapi": "model.yaml, GPUs and draft of models of the LLM API",
    "paths": "engines and tokenizers are there, as they were built",
    "manifest": "the repository is as spectool wrote it",
}


def to_sarif(directory: Path, findings: Sequence[Finding]) -> dict[str, Any]:
    """One run; places are named from where the command was started, if they lie below."""
    names = list(RULES)
    driver = {
        "name": "spectool",
        "semanticVersion": __version__,
        "rules": [{"id": name, "shortDescription": {"text": text}} for name, text in RULES.items()],
    }
    results = [
        {
            "ruleId": finding.rule,
            "ruleIndex": names.index(finding.rule),
            "level": finding.level,
            "message": {"text": finding.message},
            "locations": [{"physicalLocation": _location(directory, finding)}],
        }
        for finding in findings
    ]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _location(directory: Path, finding: Finding) -> dict[str, Any]:
    place = (directory / finding.file).absolute()
    here = Path.cwd()
    inside = place.is_relative_to(here)
    uri = quote(place.relative_to(here).as_posix()) if inside else place.as_uri()
    location: dict[str, Any] = {"artifactLocation": {"uri": uri}}
    if finding.line is not None:
        location["region"] = {"startLine": max(finding.line, 1)}
        if finding.column is not None:
            location["region"]["startColumn"] = max(finding.column, 1)
    return location
