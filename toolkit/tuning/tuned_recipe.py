"""The tuned recipe: the same deployment with the draft lengths that won, ready to build."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.measure.step_times import StepTime, StepTimes
from toolkit.recipe.load import dump_recipe
from toolkit.recipe.schema import DraftLength, Recipe, ScheduleEntry, StepTimeEntry
from toolkit.registry import DRAFTERS
from toolkit.tuning.adaptive import Challenger, changes
from toolkit.tuning.choose import overall
from toolkit.tuning.results import Results
from toolkit.tuning.trees import ChosenTree


def tuned_recipe(
    recipe: Recipe,
    schedule: Sequence[tuple[int, int]] | None,
    challenger: Challenger | None = None,  # won against the schedule's only length
    times: StepTimes | None = None,  # --mode trace: what policy throughput decides by
) -> Recipe:
    """`recipe` with the draft length of each batch size; without a drafter where none pays.

    A recipe that asks for policy throughput keeps it, up to the longest draft that won.
    """
    if schedule is None:
        return recipe
    longest = max(draft_len for _, draft_len in schedule)
    if longest == 0:
        speculation = DRAFTERS["none"].Options(drafter="none")
    else:
        options = recipe.speculation
        asked = options.draft_length
        known = asked.step_times if times is None else step_time_entries(times)
        depth = DRAFTERS[options.drafter].as_deep_as(options, longest)
        changed = {**depth, "draft_length": _draft_length(schedule)}
        if asked.policy == "throughput":
            changed["draft_length"] = asked
        elif challenger is not None:
            changed = changes(options, challenger)
            if isinstance(challenger, ChosenTree):
                known = ()  # steps of another tree
        length = changed["draft_length"].model_copy(update={"step_times": known})
        speculation = options.model_copy(update={**changed, "draft_length": length})
    return recipe.model_copy(update={"speculation": speculation})


def _draft_length(schedule: Sequence[tuple[int, int]]) -> DraftLength:
    if len(schedule) == 1:
        return DraftLength(policy="fixed")
    entries = tuple(ScheduleEntry(batch=batch, draft_len=k) for batch, k in schedule)
    return DraftLength(policy="schedule", schedule=entries)


def step_time_entries(times: StepTimes) -> tuple[StepTimeEntry, ...]:
    """The measured points in milliseconds, in the mean of the contexts that were timed."""
    found: dict[tuple[int, int], list[StepTime]] = {}
    for point in times.points:
        found.setdefault((point.batch_size, point.drafted), []).append(point)
    return tuple(
        StepTimeEntry(
            batch=batch,
            draft_len=drafted,
            # Medians of parts are medians of different steps: on a busy machine they may add up
            # to more than the median of the whole.
            ms=_mean_ms([max(p.total_ns, p.verify_ns + p.draft_ns) for p in points]),
            draft_ms=_mean_ms([p.draft_ns for p in points]),
        )
        for (batch, drafted), points in sorted(found.items())
    )


def _mean_ms(values: Sequence[float]) -> float:
    return round(sum(values) / len(values) / 1e6, 4)


def tuned_yaml(recipe: Recipe, results: Results) -> str:
    """YAML that `load_recipe` reads, under a comment that says what it rests on."""
    times = results.trace.times if results.trace else None
    tuned = tuned_recipe(recipe, results.schedule, results.challenger, times)
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
    if tuned.speculation.draft_length.step_times:
        lines.append(_about_step_times(tuned.speculation.draft_length.policy))
    comment = "".join(f"# {line}\n" for line in lines)
    return comment + dump_recipe(tuned)


def _about_step_times(policy: str) -> str:
    if policy == "throughput":
        return (
            "policy: throughput is the recipe's own and was not compared; it decides by step_times."
        )
    return (
        "step_times are for --set speculation.draft_length.policy=throughput, which gives each "
        "request of a batch its own draft length; it was not compared with what stands here."
    )
