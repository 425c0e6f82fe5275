"""The tuned recipe: the same deployment with the draft lengths that won, ready to build."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.recipe.load import dump_recipe
from toolkit.recipe.schema import DraftLength, Recipe, ScheduleEntry
from toolkit.registry import DRAFTERS
from toolkit.speculation.draft_length import Adaptive
from toolkit.tuning.choose import overall
from toolkit.tuning.results import Results


def tuned_recipe(
    recipe: Recipe,
    schedule: Sequence[tuple[int, int]] | None,
    adaptive: Adaptive | None = None,  # won against the schedule's only length
) -> Recipe:
    """`recipe` with the draft length of each batch size; without a drafter where none pays."""
    if schedule is None:
        return recipe
    longest = max(draft_len for _, draft_len in schedule)
    if longest == 0:
        speculation = DRAFTERS["none"].Options(drafter="none")
    else:
        changes = {"max_draft_len": longest, "draft_length": _draft_length(schedule)}
        if adaptive is not None:
            length = DraftLength(policy="adaptive", min=adaptive.min_draft_len)
            changes = {"max_draft_len": adaptive.max_draft_len, "draft_length": length}
        speculation = recipe.speculation.model_copy(update=changes)
    return recipe.model_copy(update={"speculation": speculation})


def _draft_length(schedule: Sequence[tuple[int, int]]) -> DraftLength:
    if len(schedule) == 1:
        return DraftLength(policy="fixed")
    entries = tuple(ScheduleEntry(batch=batch, draft_len=k) for batch, k in schedule)
    return DraftLength(policy="schedule", schedule=entries)


def tuned_yaml(recipe: Recipe, results: Results) -> str:
    """YAML that `load_recipe` reads, under a comment that says what it rests on."""
    tuned = tuned_recipe(recipe, results.schedule, results.adaptive)
    lines = [f"Tuned by spectool. {results.verdict}"]
    if not results.outcome.complete:
        lines.append(
            f"From an unfinished run: {len(results.outcome.rounds)} of "
            f"{results.outcome.planned} rounds."
        )
    lines += [f"Batch {c.batch_size}: {c.verdict}: {c.reason}." for c in overall(results.choices)]
    if results.schedule is None:
        lines.append("Nothing is decided yet, so nothing was changed.")
    elif tuned.speculation.drafter != recipe.speculation.drafter:
        lines.append(
            f"The drafter {recipe.speculation.drafter!r} gained nothing that was certain, so it is "
            "left out."
        )
    comment = "".join(f"# {line}\n" for line in lines)
    return comment + dump_recipe(tuned)
