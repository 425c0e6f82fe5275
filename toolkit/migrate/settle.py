"""Options that a release refuses and that are no part of the decision fall back to defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from toolkit.migrate.fields import Data
from toolkit.recipe.rules import broken_rules
from toolkit.recipe.schema import Recipe
from toolkit.recipe.yaml_lines import KeyPath, dotted

# Of the recipe's own sections: dotted -> what goes with it.
OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "speculation.draft_length": (),
    "pytorch.acceptance_gate": (),
    "pytorch.rejection_sampling": (),
    "pytorch.penalties": (),
    "pytorch.overlap_scheduler": (),
    "pytorch.max_concurrency": (),
}
# Free mappings of which single keys may go.
KEYED = ("pytorch.speculative_config", "pytorch.llm_args")


def settle(
    data: Data, of_drafter: Mapping[str, tuple[str, ...]]
) -> tuple[Recipe | None, list[str]]:
    """The recipe, and what is wrong with it that no fallback mends."""
    optional = dict(OPTIONAL) | {
        f"speculation.{name}": tuple(f"speculation.{other}" for other in others)
        for name, others in of_drafter.items()
    }
    gone: set[str] = set()
    while True:
        try:
            recipe = Recipe.model_validate(data.values)
        except ValidationError as error:
            return None, [f"{dotted(e['loc'])}: {e['msg']}" for e in error.errors()]
        problems = list(broken_rules(recipe))
        mended = [
            (name, text)
            for path, text in problems
            if (name := _fallback(path, optional)) and name not in gone
        ]
        if not mended:
            return recipe, list(dict.fromkeys(f"{dotted(path)}: {text}" for path, text in problems))
        for name, text in dict(mended).items():
            gone.add(name)
            for field in (name, *optional.get(name, ())):
                data.reset(field)
            data.say(name, "dropped", text)


def _fallback(path: KeyPath, optional: Mapping[str, tuple[str, ...]]) -> str | None:
    """The optional field that a problem is about."""
    for name in _ways_up(path):
        if name in optional or name.rpartition(".")[0] in KEYED:
            return name
    return None


def _ways_up(path: KeyPath) -> Iterator[str]:
    """`a.b.c`, `a.b`, `a`."""
    for length in range(len(path), 0, -1):
        yield ".".join(map(str, path[:length]))
