"""P4: every tensor is there, in its shape, and no tensor is left over, for targets and heads."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.errors import CheckpointError
from toolkit.preflight.facts import Facts
from toolkit.preflight.report import Finding, findings_of
from toolkit.registry import BACKENDS


def check(facts: Facts) -> Iterator[Finding]:
    """What `convert` would refuse, from headers alone."""
    for role in facts.configs:
        if role not in facts.sources:
            continue  # not here, or checked whole when it was opened
        name = facts.sources[role].name
        try:
            facts.placed(role)
        except CheckpointError as error:
            yield from findings_of(f"{role} {name}", error)
            yield Finding(
                f"{role} {name}",
                "take the whole checkpoint again, with the config.json that belongs to it",
            )
    yield from _head_count(facts)
    yield from _quantized(facts)


def _quantized(facts: Facts) -> Iterator[Finding]:
    """Checkpoints that are copied as they are may hold what only TensorRT-LLM multiplies by."""
    if BACKENDS[facts.recipe.backend].needs_floats:
        for role, ready in facts.ready.items():
            if ready.quantized:
                yield Finding(
                    f"{role} {ready.name}",
                    f"its matrices are quantised already; backend {facts.recipe.backend} needs "
                    "floating point weights: take the checkpoint before it was quantised, or "
                    "backend: tensorrt",
                )


def _head_count(facts: Facts) -> Iterator[Finding]:
    """config.json of published heads is often wrong about how many there are."""
    if facts.heads is None or "target" not in facts.configs:
        return
    said = facts.heads.config.get("medusa_num_heads")
    try:
        found = facts.placed("target").config.get("num_medusa_heads")
    except CheckpointError:
        return
    if said is not None and found is not None and said != found:
        yield Finding(
            "heads",
            f"config.json: medusa_num_heads is {said}, {found} of the file's heads are used; the "
            "file decides, and num_medusa_heads in the recipe",
            "note",
        )
