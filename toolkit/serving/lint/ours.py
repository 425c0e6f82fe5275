"""Rules for models of ours: tensors and parameters are those that the code reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from toolkit.errors import did_you_mean
from toolkit.serving.contract import Contract, Tensor
from toolkit.serving.lint.repository import Finding, Model, Repository
from toolkit.serving.pbtxt import dtype_name, parameters_of

_FLAGS = {"true", "false"}
_ROLES = {"target", "draft"}


def check_contract(repository: Repository) -> Iterator[Finding]:
    for model in repository.parsed:
        contract = repository.contract(model)
        if contract is None:
            continue
        yield from _compare(model, "input", model.config.input, contract.inputs)
        yield from _compare(model, "output", model.config.output, contract.outputs)
        yield from _check_decoupled(model, contract)


def _compare(
    model: Model, kind: str, declared: Sequence[Any], wanted: Sequence[Tensor]
) -> Iterator[Finding]:
    names = {tensor.name for tensor in declared}
    by_name = {tensor.name: tensor for tensor in wanted}
    for tensor in declared:
        if tensor.name not in by_name:
            hint = did_you_mean(tensor.name, by_name)
            yield model.error(f"{kind} {tensor.name!r}: this model has none{hint}", tensor.name)
            continue
        for difference in _differences(kind, tensor, by_name[tensor.name]):
            yield model.error(f"{kind} {tensor.name!r}: {difference}", tensor.name)
    for tensor in wanted:
        if tensor.name in names:
            continue
        if kind == "input" and tensor.optional:
            yield model.warning(f"input {tensor.name!r} is not declared: no request can use it")
        else:
            yield model.error(f"{kind} {tensor.name!r} is missing")


def _differences(kind: str, found: Any, wanted: Tensor) -> Iterator[str]:
    if (dtype := dtype_name(found.data_type)) != wanted.dtype:
        yield f"data_type {dtype}, expected {wanted.dtype}"
    if tuple(found.dims) != wanted.dims:
        yield f"dims {list(found.dims)}, expected {list(wanted.dims)}"
    if found.HasField("reshape") != wanted.reshape or list(found.reshape.shape):
        yield "reshape must be empty: reshape { }" if wanted.reshape else "reshape: expected none"
    if kind == "input" and found.optional != wanted.optional:
        yield f"optional: {str(found.optional).lower()}, expected {str(wanted.optional).lower()}"
    if kind == "input" and found.allow_ragged_batch != wanted.ragged:
        yield f"allow_ragged_batch must be {str(wanted.ragged).lower()}"


def _check_decoupled(model: Model, contract: Contract) -> Iterator[Finding]:
    decoupled = model.config.model_transaction_policy.decoupled
    if contract.decoupled and not decoupled:
        yield model.error(
            "model_transaction_policy: decoupled must be true: this model streams its responses"
        )
    if decoupled and not contract.decoupled:
        yield model.error("model_transaction_policy: this model gives one response to a request")


def check_parameters(repository: Repository) -> Iterator[Finding]:
    for model in repository.parsed:
        contract = repository.contract(model)
        if contract is None:
            continue
        known = {parameter.name: parameter for parameter in contract.parameters}
        for name in parameters_of(model.config):
            if name not in known:
                hint = did_you_mean(name, known)
                yield model.error(f"parameter {name!r}: this model reads no such{hint}", name)
        for name, parameter in known.items():
            value = model.parameters.get(name)
            if value is None and parameter.required:
                yield model.error(f"parameter {name!r} is missing or empty")
            if value is not None and (problem := value_problem(parameter.kind, value)):
                yield model.error(f"parameter {name!r}: {problem}", name)


def value_problem(kind: str, value: str) -> str | None:
    """Why a parameter of this kind (as in contract.py) cannot have the value."""
    if kind == "number" and not (_digits(value) and int(value) > 0):
        return f"{value!r}, expected a whole number above 0"
    if kind == "count" and not _digits(value):
        return f"{value!r}, expected a whole number"
    if kind == "numbers" and not all(map(_digits, value.split(","))):
        return f"{value!r}, expected whole numbers like 1024,2048"
    if kind == "groups" and not all(map(_digits, re.split("[,;]", value))):
        return f"{value!r}, expected numbers like 0,1 or 0,1;2,3"
    if kind == "fraction" and not _is_fraction(value):
        return f"{value!r}, expected a number above 0, at most 1"
    if kind == "flag" and value.lower() not in _FLAGS:
        return f"{value!r}, expected true or false"
    if kind == "role" and value not in _ROLES:
        return f"{value!r}, expected target or draft{did_you_mean(value, _ROLES)}"
    if kind.startswith("one of "):
        choices = kind.removeprefix("one of ").split("|")
        if value not in choices:
            return f"{value!r}, expected {' or '.join(choices)}{did_you_mean(value, choices)}"
    if kind in ("json", "paths"):
        return _json_problem(value)
    return None


def _digits(value: str) -> bool:
    return value.strip().isascii() and value.strip().isdigit()


def _is_fraction(value: str) -> bool:
    try:
        return 0 < float(value) <= 1
    except ValueError:
        return False


def _json_problem(value: str) -> str | None:
    try:
        found = json.loads(value)
    except ValueError as error:
        return f"not JSON: {error}"
    return None if isinstance(found, dict) else "expected a JSON object"
