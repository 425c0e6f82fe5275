"""What the recipe says about tuning, against the sizes and prompts that it will meet."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.errors import InputError, SpectoolError
from toolkit.measure.prompts import load_prompt_sets
from toolkit.preflight.report import Finding, Level
from toolkit.recipe.schema import Recipe


def check_tune(recipe: Recipe) -> Iterator[Finding]:
    """Prompts that load, batches and lengths that fit."""
    tune, engine = recipe.tune, recipe.engine
    try:
        load_prompt_sets(tune.prompts, limit=tune.prompts_per_domain)
    except InputError as error:
        for line in _items(error):
            yield Finding("tune.prompts", line.strip())

    def level(name: str) -> Level:
        # Defaults that do not fit concern nobody who does not tune; what the recipe says must fit.
        return "problem" if name in tune.model_fields_set else "note"

    if max(tune.batch) > engine.max_batch_size:
        yield Finding(
            "tune.batch",
            f"{max(tune.batch)} is above engine.max_batch_size ({engine.max_batch_size}); raise "
            "that, or measure smaller batches",
            level("batch"),
        )
    if tune.max_tokens >= engine.max_seq_len:
        yield Finding(
            "tune.max_tokens",
            f"{tune.max_tokens} leaves no room for a prompt in engine.max_seq_len "
            f"({engine.max_seq_len})",
            level("max_tokens"),
        )
    longest, drafted = max(tune.k), recipe.speculation.max_draft_len
    if longest > drafted and recipe.speculation.drafter != "none":
        yield Finding(
            "tune.k",
            f"goes up to {longest}, but a deployment of this recipe drafts at most {drafted} "
            "(speculation.max_draft_len)",
            "note",
        )


def _items(error: SpectoolError) -> list[str]:
    """The items of an error that lists them under a first line, or its one line."""
    first, *rest = str(error).splitlines()
    return rest or [first]
