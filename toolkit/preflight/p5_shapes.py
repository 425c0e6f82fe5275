"""P5: numbers that must agree inside a head, and between a head and its target.

Heads that are converted with their target are checked with its tensors (P4). Here are those that
another backend loads as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from toolkit.checkpoint.drafts.eagle3 import Eagle3Form, plan_eagle3
from toolkit.checkpoint.drafts.target import (
    TargetFacts,
    converted_target_facts,
    target_facts,
)
from toolkit.checkpoint.interfaces import Source
from toolkit.engine.llmapi.captured import CAPTURE_KEY, captured_problem
from toolkit.errors import CheckpointError
from toolkit.preflight.facts import Facts
from toolkit.preflight.report import Finding, findings_of


def check(facts: Facts) -> Iterator[Finding]:
    """The head of this drafter, from its header, its maps and its config.json."""
    rule = HEADS_OF.get(facts.recipe.speculation.drafter)
    if rule and facts.heads is not None and {"target"} & {*facts.configs, *facts.loaded}:
        yield from rule(facts, facts.heads)


def _eagle3(facts: Facts, heads: Source) -> Iterator[Finding]:
    try:
        target = _target(facts)
    except CheckpointError as error:
        yield from findings_of("target", error)
        return
    plan = plan_eagle3(heads, target, Eagle3Form(release=facts.release))
    for problem in plan.problems:
        yield Finding("heads", f"{heads.name}: {problem}")
    for note in plan.notes:
        yield Finding("heads", f"{heads.name}: {note}", "note")
    captured = plan.captured_layers
    wrong = captured and captured_problem(facts.recipe, captured, target.layers)
    if wrong:
        yield Finding(f"speculation.{CAPTURE_KEY}", wrong)


def _target(facts: Facts) -> TargetFacts:
    if "target" in facts.configs:
        return converted_target_facts(facts.configs["target"])
    return target_facts(facts.loaded["target"], facts.models["target"].checkpoint)


HEADS_OF: Mapping[str, Callable[[Facts, Source], Iterator[Finding]]] = {"eagle3": _eagle3}
