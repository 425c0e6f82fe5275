"""P4: every tensor is there, in its shape, and no tensor is left over, for targets and heads."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.errors import CheckpointError
from toolkit.preflight.facts import Facts
from toolkit.preflight.report import Finding, findings_of


def check(facts: Facts) -> Iterator[Finding]:
    """What `convert` would refuse, from headers alone."""
    for role in facts.configs:
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
