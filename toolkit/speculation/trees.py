"""Trees of draft tokens: which children of which node are drafted, as Medusa and EAGLE choices.

A choice is a path of child indices: [0] is the likeliest first token, [0, 2] the third likeliest
token after it. A tree is stored with its choices and their hash: names do not identify one
(`mc_sim_7b_63` is 63 paths in Medusa's repository and 25 other paths in EAGLE's).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field, model_validator

from toolkit.errors import did_you_mean
from toolkit.recipe.section import Section

Choice = tuple[int, ...]
# TensorRT-LLM packs a path into 64 bits, 4 a level.
MAX_INDEX = 15
MAX_DEPTH = 16

NAMED: Mapping[str, tuple[Choice, ...]] = {
    "medusa/mc_sim_7b_63": (
        (0,), (0, 0), (1,), (0, 1), (2,), (0, 0, 0), (1, 0), (0, 2), (3,), (0, 3), (4,), (0, 4),
        (2, 0), (0, 5), (0, 0, 1), (5,), (0, 6), (6,), (0, 7), (0, 1, 0), (1, 1), (7,), (0, 8),
        (0, 0, 2), (3, 0), (0, 9), (8,), (9,), (1, 0, 0), (0, 2, 0), (1, 2), (0, 0, 3), (4, 0),
        (2, 1), (0, 0, 4), (0, 0, 5), (0, 0, 0, 0), (0, 1, 1), (0, 0, 6), (0, 3, 0), (5, 0), (1, 3),
        (0, 0, 7), (0, 0, 8), (0, 0, 9), (6, 0), (0, 4, 0), (1, 4), (7, 0), (0, 1, 2), (2, 0, 0),
        (3, 1), (2, 2), (8, 0), (0, 5, 0), (1, 5), (1, 0, 1), (0, 2, 1), (9, 0), (0, 6, 0),
        (0, 0, 0, 1), (1, 6), (0, 7, 0),
    ),
    "eagle/mc_sim_7b_63": (
        (0,), (1,), (2,), (3,), (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0),
        (0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (1, 0, 0),
        (0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 2), (0, 0, 0, 0, 0), (0, 0, 0, 0, 1),
    ),
}  # fmt: skip


class Tree(Section):
    """Choices with their hash; in a recipe a list of paths, or a name from the table above."""

    name: str | None = None
    choices: tuple[tuple[int, ...], ...] = Field(min_length=1)
    sha256: str = Field("", description="Of the canonical choices; filled in when left out.")

    @model_validator(mode="before")
    @classmethod
    def _from_name_or_list(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = {"name": value}
        if isinstance(value, (list, tuple)):
            value = {"choices": value}
        if not isinstance(value, dict):
            return value
        value = dict(value)
        if "choices" not in value and isinstance(value.get("name"), str):
            value["choices"] = named(value["name"])
        if isinstance(choices := value.get("choices"), (list, tuple)):
            value["choices"] = tuple(tuple(p) if isinstance(p, list) else p for p in choices)
        return value

    @model_validator(mode="after")
    def _whole_and_unchanged(self) -> Tree:
        if problems := list(shape_problems(self.choices)):
            raise ValueError("; ".join(problems))
        found = canonical_hash(self.choices)
        if self.sha256 and self.sha256 != found:
            raise ValueError(
                f"sha256 is {self.sha256[:12]}..., but these choices have {found[:12]}...: "
                "the tree was edited; leave sha256 out to accept it"
            )
        known = NAMED.get(self.name or "")
        if known and canonical_hash(known) != found:
            raise ValueError(f"these are not the choices of {self.name!r}; leave the name out")
        object.__setattr__(self, "sha256", found)  # frozen, and not the user's to write
        return self

    @property
    def depth(self) -> int:
        return max(map(len, self.choices))

    def lists(self) -> list[list[int]]:
        """The choices as TensorRT-LLM's bindings take them."""
        return [list(path) for path in self.choices]

    def braces(self) -> str:
        """The choices as Triton's tensorrtllm backend takes them: `{0}, {0, 1}`."""
        return ", ".join("{" + ", ".join(map(str, path)) + "}" for path in self.choices)


def named(name: str) -> tuple[Choice, ...]:
    """The choices of a known tree; a bare name that means two trees is refused."""
    if name in NAMED:
        return NAMED[name]
    if meanings := [full for full in NAMED if full.partition("/")[2] == name]:
        sizes = ", ".join(f"{full} ({len(NAMED[full])} paths)" for full in meanings)
        raise ValueError(f"{name!r} is the name of different trees; write one of: {sizes}")
    raise ValueError(
        f"unknown tree {name!r}{did_you_mean(name, NAMED)} (known: {', '.join(NAMED)}; "
        "or write the list of paths)"
    )


def canonical_hash(choices: Sequence[Sequence[int]]) -> str:
    """sha256 of the paths in order of depth, then index: the order of writing changes nothing."""
    paths = sorted((list(path) for path in choices), key=lambda path: (len(path), path))
    return hashlib.sha256(json.dumps(paths, separators=(",", ":")).encode()).hexdigest()


def shape_problems(choices: Sequence[Sequence[int]]) -> Iterator[str]:
    """What makes a set of paths no tree, or one that 64-bit path codes cannot hold."""
    paths = [tuple(path) for path in choices]
    if () in paths:
        yield "an empty path; the root is not a choice"
    if repeated := [list(path) for path, count in Counter(paths).items() if count > 1]:
        yield f"paths given twice: {_some(repeated)}"
    present = {*paths, ()}
    if orphans := [list(path) for path in paths if path and path[:-1] not in present]:
        yield f"paths whose parent is missing: {_some(orphans)}"  # upstream hangs them on the root
    if wide := [list(path) for path in paths if any(not 0 <= i <= MAX_INDEX for i in path)]:
        yield f"child index outside 0..{MAX_INDEX}: {_some(wide)}"
    depths = {len(path) for path in paths}
    if depths and max(depths) > MAX_DEPTH:
        yield f"depth {max(depths)}, at most {MAX_DEPTH} is possible"
    if missing := set(range(1, max(depths, default=0))) - depths:
        yield f"no path of depth {', '.join(map(str, sorted(missing)))}: depths must be contiguous"


def fit_problems(
    choices: Sequence[Sequence[int]],
    *,
    max_draft_len: int,
    depth: int | None,
    exact_depth: bool = False,
    max_non_leaves_per_layer: int | None = None,
) -> Iterator[str]:
    """What a tree asks of an engine beyond what it is built for."""
    found = max(map(len, choices))
    if len(choices) > max_draft_len:
        yield (
            f"{len(choices)} nodes, max_draft_len is {max_draft_len}; remove nodes, or build with "
            f"max_draft_len {len(choices)}"
        )
    if depth is not None and (found > depth or (exact_depth and found != depth)):
        yield f"depth {found}, this drafter has {'exactly' if exact_depth else 'at most'} {depth}"
    if max_non_leaves_per_layer is not None:
        for level, count in sorted(non_leaves(choices).items()):
            if count > max_non_leaves_per_layer:
                yield (
                    f"{count} nodes of depth {level} have children, max_non_leaves_per_layer is "
                    f"{max_non_leaves_per_layer}"
                )


def is_chain(choices: Sequence[Sequence[int]]) -> bool:
    """Whether every node has one child, the likeliest."""
    return all(not any(path) for path in choices)


def non_leaves(choices: Sequence[Sequence[int]]) -> dict[int, int]:
    """Depth -> how many nodes of that depth have children."""
    parents = {tuple(path[:-1]) for path in choices if len(path) > 1}
    return dict(Counter(len(parent) for parent in parents))


def _some(paths: Sequence[list[int]]) -> str:
    shown = ", ".join(map(str, paths[:4]))
    return shown if len(paths) <= 4 else f"{shown} and {len(paths) - 4} more"
