"""Rules about combinations of fields, which no single field can check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, get_args

from toolkit.errors import did_you_mean
from toolkit.recipe.schema import BackendName, Recipe, Speculation
from toolkit.recipe.yaml_lines import KeyPath
from toolkit.registry import BACKENDS, DRAFTERS, RECIPE_RULES

# Only backend cpu has a default grammar; upstream's servers take one with each request.
_GRAMMARS_ELSEWHERE = {
    "pytorch": "trtllm-serve takes a grammar with each request (response_format); remove this and "
    "write pytorch.guided_decoding: xgrammar",
    "tensorrt": "Triton takes a grammar with each request (guided_decoding_guide); remove this and "
    "write serve.tensorrt.guided_decoding: xgrammar",
}


def names_that_nothing_has(data: Mapping[str, Any]) -> dict[KeyPath, str]:
    """Drafters and backends that this version lacks, before anything else is validated."""
    found: dict[KeyPath, str] = {}
    speculation = data.get("speculation")
    if isinstance(speculation, dict):
        path = ("speculation", "drafter")
        known = ", ".join(DRAFTERS)
        name = speculation.get("drafter")
        if "drafter" not in speculation:
            close = did_you_mean("drafter", speculation)
            wrote = close.replace("did you mean", "is it written as") if close else ""
            found[path] = f"required: one of {known}{wrote}"
        elif not isinstance(name, str) or name not in DRAFTERS:
            hint = did_you_mean(str(name), DRAFTERS)
            found[path] = f"unknown drafter {name!r}{hint} (known: {known})"
    backend = data.get("backend")
    if backend in get_args(BackendName) and backend not in BACKENDS:
        available = ", ".join(BACKENDS)
        found[("backend",)] = (
            f"{backend!r} is not in this version of spectool (it has: {available})"
        )
    return found


def broken_rules(recipe: Recipe) -> Iterator[tuple[KeyPath, str]]:
    """Where, and what is wrong, for every rule that a well-formed recipe breaks."""
    yield from _backend_rules(recipe)
    speculation, serve = recipe.speculation, recipe.serve
    if speculation.draft_length.min > speculation.max_draft_len:
        yield (
            ("speculation", "draft_length", "min"),
            f"{speculation.draft_length.min} is above max_draft_len ({speculation.max_draft_len})",
        )
    yield from _schedule_rules(speculation)
    yield from _step_time_rules(speculation)
    if recipe.guided_decoding and (reason := _GRAMMARS_ELSEWHERE.get(recipe.backend)):
        yield ("guided_decoding",), reason
    ports: dict[int, str] = {}
    for field in ("http_port", "grpc_port", "metrics_port"):
        port = getattr(serve, field)
        if port in ports:
            yield ("serve", field), f"{port} is also {ports[port]}; the three ports must differ"
        ports.setdefault(port, field)
    for role, model in recipe.models().items():
        if model.trust_remote_code:
            path = ("target",) if role == "target" else ("speculation", role)
            yield (
                (*path, "trust_remote_code"),
                "spectool never runs code that comes with a checkpoint; remove this key",
            )


def _backend_rules(recipe: Recipe) -> Iterator[tuple[KeyPath, str]]:
    drafter = DRAFTERS[recipe.speculation.drafter]
    if reason := drafter.unsupported_on(recipe.backend, recipe.tensorrt_llm):
        yield ("speculation", "drafter"), f"{recipe.speculation.drafter}: {reason}"
        return
    length = recipe.speculation.draft_length
    if length.policy == "confidence" and not drafter.has_confidence:
        yield (
            ("speculation", "draft_length", "policy"),
            f"confidence: {recipe.speculation.drafter} gives its drafts no probabilities; use "
            "fixed, adaptive or schedule",
        )
    if recipe.backend in RECIPE_RULES:
        yield from RECIPE_RULES[recipe.backend](recipe)


def _schedule_rules(speculation: Speculation) -> Iterator[tuple[KeyPath, str]]:
    where = ("speculation", "draft_length", "schedule")
    length, entries = speculation.draft_length, speculation.draft_length.schedule
    if length.policy == "schedule" and not entries:
        yield where, "empty; policy: schedule needs entries like {batch: 1, draft_len: 4}"
    # Beside policy throughput it is what was tuned: one word away from being used again.
    if length.policy not in ("schedule", "throughput") and entries:
        yield where, f"has no meaning with policy: {length.policy}; write policy: schedule"
    batches = [entry.batch for entry in entries]
    if any(a >= b for a, b in pairwise(batches)):
        yield where, f"batch sizes {batches} must ascend"
    if too_long := [e.draft_len for e in entries if e.draft_len > speculation.max_draft_len]:
        yield where, f"{max(too_long)} is above max_draft_len ({speculation.max_draft_len})"


def _step_time_rules(speculation: Speculation) -> Iterator[tuple[KeyPath, str]]:
    where = ("speculation", "draft_length", "step_times")
    policy, entries = speculation.draft_length.policy, speculation.draft_length.step_times
    # With another policy they are what was measured: one word away from being used.
    if policy == "throughput" and not entries:
        yield (
            where,
            "empty; policy: throughput needs entries like {batch: 1, draft_len: 0, ms: 15.2}, "
            "which tune --mode trace measures and writes into tuned.yaml",
        )
    points = [(entry.batch, entry.draft_len) for entry in entries]
    if twice := sorted({point for point in points if points.count(point) > 1}):
        yield where, f"batch {twice[0][0]} with draft_len {twice[0][1]} stands there twice"
    plain = {batch for batch, length in points if length == 0}
    if missing := sorted({batch for batch, _ in points} - plain):
        yield where, f"draft_len 0 is missing for batch {', '.join(map(str, missing))}"
    if wrong := [entry for entry in entries if entry.draft_ms >= entry.ms]:
        yield where, f"drafting takes the whole step at batch {wrong[0].batch}"
