"""The tuned recipe: the same deployment with the draft length that won, ready to build."""

from __future__ import annotations

from toolkit.recipe.load import dump_recipe
from toolkit.recipe.schema import DraftLength, Recipe
from toolkit.registry import DRAFTERS
from toolkit.tuning.choose import overall
from toolkit.tuning.grid import PLAIN
from toolkit.tuning.results import Results


def tuned_recipe(recipe: Recipe, k: int | None) -> Recipe:
    """`recipe` with the draft length that won; without a drafter where none pays (0)."""
    if k is None:
        return recipe
    if k == PLAIN:
        speculation = DRAFTERS["none"].Options(drafter="none")
    else:
        changes = {"max_draft_len": k, "draft_length": DraftLength(policy="fixed")}
        speculation = recipe.speculation.model_copy(update=changes)
    return recipe.model_copy(update={"speculation": speculation})


def tuned_yaml(recipe: Recipe, results: Results) -> str:
    """YAML that `load_recipe` reads, under a comment that says what it rests on."""
    k = results.tuned_k
    lines = [f"Tuned by spectool. {results.verdict}"]
    if not results.outcome.complete:
        lines.append(
            f"From an unfinished run: {len(results.outcome.rounds)} of "
            f"{results.outcome.planned} rounds."
        )
    lines += [f"Batch {c.batch_size}: {c.verdict}: {c.reason}." for c in overall(results.choices)]
    if k is None:
        lines.append("Nothing is decided yet, so nothing was changed.")
    if k == PLAIN:
        lines.append(
            f"The drafter {recipe.speculation.drafter!r} gained nothing that was certain, so it is "
            "left out."
        )
    comment = "".join(f"# {line}\n" for line in lines)
    return comment + dump_recipe(tuned_recipe(recipe, k))
