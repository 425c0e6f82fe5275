"""P1: drafter x architecture x quantisation x GPU x release, as far as models decide it.

What the recipe alone refuses was said when it was loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from toolkit.engine.llmapi.notes import model_notes, recipe_notes
from toolkit.engine.llmapi.rules import model_problems as loaded_problems
from toolkit.engine.trtllm.gpus import architecture, shown
from toolkit.engine.trtllm.rules import model_problems
from toolkit.errors import InputError
from toolkit.preflight.facts import Facts
from toolkit.preflight.report import Finding, findings_of
from toolkit.recipe.yaml_lines import dotted
from toolkit.registry import BACKENDS
from toolkit.speculation.typical import lossy

# Upstream skips its own tests of these modes on Blackwell.
UNTESTED_FROM = {"medusa": 100, "eagle": 100, "lookahead": 100}


def check(facts: Facts) -> Iterator[Finding]:
    """Limits of the backend, then its rules about combinations."""
    yield from _limits(facts)
    if said := lossy(facts.recipe.speculation):
        yield Finding("speculation.posterior_threshold", f"{said}; null is exact", "note")
    if rules := RULES.get(facts.recipe.backend):
        yield from rules(facts)


def _limits(facts: Facts) -> Iterator[Finding]:
    recipe = facts.recipe
    if recipe.backend not in BACKENDS:
        return
    for role, config in facts.configs.items():
        try:
            BACKENDS[recipe.backend].check(config, recipe.engine, facts.models[role].checkpoint)
        except InputError as error:
            yield from findings_of(role, error)


def _tensorrt(facts: Facts) -> Iterator[Finding]:
    gpu = facts.gpu or facts.recipe.tensorrt.gpu
    sm = architecture(gpu) if gpu else None
    for path, text in model_problems(facts.recipe, facts.configs, sm=sm):
        yield Finding(dotted(path), text)
    drafter = facts.recipe.speculation.drafter
    if sm and sm >= UNTESTED_FROM.get(drafter, 1000):
        yield Finding(
            "tensorrt.gpu",
            f"TensorRT-LLM does not test {drafter} engines on {shown(sm)}; verify the output "
            f"there, or deploy on a GPU before {shown(UNTESTED_FROM[drafter])}",
            "note",
        )


def _pytorch(facts: Facts) -> Iterator[Finding]:
    loaded = facts.loaded
    for path, text in loaded_problems(facts.recipe, loaded.get("target"), loaded.get("draft")):
        yield Finding(dotted(path), text)
    notes = model_notes(facts.recipe, loaded.get("target"))
    for note in [*notes, *recipe_notes(facts.recipe)]:
        yield Finding("pytorch", note, "note")


RULES: Mapping[str, Callable[[Facts], Iterator[Finding]]] = {
    "tensorrt": _tensorrt,
    "pytorch": _pytorch,
}
