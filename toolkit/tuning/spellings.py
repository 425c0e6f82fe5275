"""The schedule as servers are told of it: the same decision in each one's words.

TensorRT-LLM's PyTorch backend reads `draft_len_schedule`, whose keys mean "batch at least" in some
releases and "batch at most" in others, or has only `max_concurrency`, or nothing: the recipe's own
release decides. Engines know no batch-dependent length; there the client turns speculation off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolkit.engine.llmapi.emit import draft_len_schedule
from toolkit.engine.llmapi.profile import Profile
from toolkit.engine.llmapi.profiles import profile
from toolkit.recipe.schema import DraftLength, Recipe, ScheduleEntry
from toolkit.registry import DRAFTERS
from toolkit.speculation.draft_length import batch_ranges
from toolkit.speculation.trees import Tree

Steps = Sequence[tuple[int, int]]  # (from this batch size on, draft length), 0: off


@dataclass(frozen=True)
class Spelling:
    """What one server is told, and what is lost on it."""

    server: str
    settings: dict[str, Any]
    note: str = ""

    def __str__(self) -> str:
        said = ", ".join(f"{name}: {value}" for name, value in self.settings.items())
        return f"{said} ({self.note})" if self.note else said


def spellings(recipe: Recipe, steps: Steps | None) -> list[Spelling]:
    """For every server; none while nothing is decided or nothing pays."""
    if not steps or not any(length for _, length in steps):
        return []
    # The smallest batch size that was measured is the nearest to any smaller one.
    steps = [(1, steps[0][1]), *steps[1:]]
    return [_trtllm(recipe, steps), _engines(recipe, steps), _vllm(recipe, steps)]


def document(found: Sequence[Spelling]) -> list[dict[str, Any]]:
    """For results.json: JSON has no integer keys, so a schedule is a list of [batch, length]."""
    return [{**asdict(each), "settings": _plain(each.settings)} for each in found]


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        key: [list(pair) for pair in value.items()] if isinstance(value, dict) else value
        for key, value in settings.items()
    }


def _trtllm(recipe: Recipe, steps: Steps) -> Spelling:
    rules, release = profile(recipe.tensorrt_llm), recipe.tensorrt_llm
    server, longest = f"TensorRT-LLM {release}, PyTorch backend", max(k for _, k in steps)
    settings: dict[str, Any] = {"max_draft_len": longest}
    if len(steps) == 1:
        return Spelling(server, settings)
    if rules.schedule_keys is not None:
        if steps[0][1] != longest:
            return _only_length(server, steps, "wants the longest draft at batch 1")
        scheduled = _scheduled(recipe, steps, longest)
        settings["draft_len_schedule"] = draft_len_schedule(scheduled, rules)
        note = f"{release} reads a key as 'batch {rules.schedule_keys} this'"
        doubt = rules.unsure.get("draft_len_schedule", "")
        return Spelling(server, settings, "; ".join(filter(None, (note, doubt))))
    return _concurrency(server, rules, steps)


def _scheduled(recipe: Recipe, steps: Steps, longest: int) -> Recipe:
    entries = tuple(ScheduleEntry(batch=batch, draft_len=length) for batch, length in steps)
    changes = {
        "max_draft_len": longest,
        "draft_length": DraftLength(policy="schedule", schedule=entries),
    }
    return recipe.model_copy(update={"speculation": recipe.speculation.model_copy(update=changes)})


def _concurrency(server: str, rules: Profile, steps: Steps) -> Spelling:
    """One length up to a batch size, and nothing above: all that these releases know."""
    off = next((batch for batch, length in steps if length == 0), None)
    if steps[0][1] == 0:
        return _only_length(server, steps, "cannot begin with speculation off")
    lost = "one length for every batch size where it speculates" if len(set(steps)) > 2 else ""
    if off is None:
        return Spelling(server, {"max_draft_len": steps[0][1]}, lost)
    if "max_concurrency" in rules.fixes:
        why = f"{rules.fixes['max_concurrency']}; keep fewer than {off} requests in flight"
        return Spelling(server, {"max_draft_len": steps[0][1]}, why)
    settings = {"max_draft_len": steps[0][1], "max_concurrency": off - 1}
    return Spelling(server, settings, lost)


def _only_length(server: str, steps: Steps, why: str) -> Spelling:
    longest = max(k for _, k in steps)
    return Spelling(server, {"max_draft_len": longest}, f"{why}, so the schedule is left out")


def _engines(recipe: Recipe, steps: Steps) -> Spelling:
    options = recipe.speculation
    depth = DRAFTERS[options.drafter].as_deep_as(options, max(k for _, k in steps))
    settings: dict[str, Any] = {
        name: value.lists() if isinstance(value, Tree) else value
        for name, value in {"max_draft_len": options.max_draft_len, **depth}.items()
    }
    off = next((batch for batch, length in steps if length == 0), None)
    told = f"num_draft_tokens: 0 with every request while {off} or more run" if off else ""
    note = "" if len(steps) == 1 else "engines have one length for all batch sizes"
    return Spelling(
        "TensorRT-LLM engines on Triton", settings, "; ".join(filter(None, (note, told)))
    )


def _vllm(recipe: Recipe, steps: Steps) -> Spelling:
    settings: dict[str, Any] = {"num_speculative_tokens": max(k for _, k in steps)}
    if len(steps) == 1:
        return Spelling("vLLM", settings)
    ranges = batch_ranges(steps, recipe.engine.max_batch_size)
    settings["num_speculative_tokens_per_batch_size"] = [list(each) for each in ranges]
    return Spelling("vLLM", settings, "documented for EAGLE, EAGLE-3 and DFlash")
