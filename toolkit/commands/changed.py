"""Which recipes would build something else than they would have at an earlier revision."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from toolkit.errors import InputError, MissingDependencyError, SpectoolError

if TYPE_CHECKING:
    from toolkit.plan import Plan
    from toolkit.store import Store


@dataclass(frozen=True)
class Compared:
    """A recipe of a repository, what it would build now, and why that is something else."""

    name: str
    plan: Plan
    why: str | None  # None: it would have built the same

    def to_json(self) -> dict[str, Any]:
        from toolkit.tuning.setup import untunable

        recipe = self.plan.recipe
        return {
            "recipe": self.name,
            "why": self.why,
            "gpu": recipe.tensorrt.gpu,
            "digest": self.plan.digest,
            "untunable": untunable(recipe),
        }


def changed_since(
    revision: str, named: Sequence[tuple[str, Plan]], overrides: Sequence[str], store: Store
) -> list[Compared]:
    """The recipes in `named` (file, plan), each compared with its plan at a git revision.

    The earlier plan is made from the recipe files of that revision and the weights of today;
    weights that are in the repository count as changed when git says so. Zeros for a revision mean
    that there is none: every recipe is new.
    """
    if set(revision) == {"0"}:  # how git and CI systems write that there is no earlier one
        return [Compared(name, plan, "no earlier revision") for name, plan in named]
    root = Path(_git(Path(), "rev-parse", "--show-toplevel").strip())
    commit = _commit(root, revision)
    touched = {
        root / name for name in _git(root, "diff", "--name-only", "-z", commit).split("\0") if name
    }
    outside = [name for name, _ in named if not _inside(name, root)]
    if outside:
        raise InputError(
            f"{', '.join(outside)}: not a recipe file of the repository {root}; --changed-since "
            "compares recipes that are in it"
        )
    with _as_of(root, commit) as old:
        return [
            Compared(name, plan, _why(name, plan, overrides, store, root, old, touched, revision))
            for name, plan in named
        ]


def _why(
    name: str,
    plan: Plan,
    overrides: Sequence[str],
    store: Store,
    root: Path,
    old: Path,
    touched: set[Path],
    revision: str,
) -> str | None:
    from toolkit.plan import make_plan
    from toolkit.recipe.load import load_recipe

    there = old / Path(name).resolve().relative_to(root)
    if not there.is_file():
        return f"not in {revision}"
    try:
        before = make_plan(load_recipe(str(there), overrides), store)
    except SpectoolError:
        return f"could not be planned at {revision}"
    if before.digest != plan.digest:
        return f"would build something else than at {revision}"
    for model in plan.recipe.models().values():
        for text in filter(None, (model.checkpoint, model.tokenizer)):
            place = Path(text).resolve()
            if any(path == place or place in path.parents for path in touched):
                return f"{text} changed since {revision}"
    return None


@contextmanager
def _as_of(root: Path, commit: str) -> Iterator[Path]:
    """A directory with the YAML files of a commit, and links to all else that is there today."""
    listed = _git(root, "ls-tree", "-r", "--name-only", "-z", commit).split("\0")
    files = [name for name in listed if name.endswith((".yaml", ".yml"))]
    with TemporaryDirectory(prefix="spectool-since-") as folder:
        old = Path(folder)
        for name in files:
            (old / name).parent.mkdir(parents=True, exist_ok=True)
            (old / name).write_text(_git(root, "show", f"{commit}:{name}"), encoding="utf-8")
        for made in [old, *(path for path in old.rglob("*") if path.is_dir())]:
            today = root / made.relative_to(old)
            for other in today.iterdir() if today.is_dir() else ():
                link = made / other.name
                if not link.exists() and other.suffix not in (".yaml", ".yml"):
                    link.symlink_to(other)
        yield old


def _commit(root: Path, revision: str) -> str:
    words = ("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    try:
        return _git(root, *words).strip()
    except InputError:
        raise InputError(
            f"--changed-since {revision}: no such revision here; a shallow clone lacks older ones "
            "(git fetch --unshallow)"
        ) from None


def _inside(name: str, root: Path) -> bool:
    return Path(name).is_file() and Path(name).resolve().is_relative_to(root.resolve())


def _git(where: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", *words], cwd=where, capture_output=True, check=False, timeout=300
        )
    except FileNotFoundError:
        raise MissingDependencyError("--changed-since needs git, which is not installed") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise InputError(f"git {words[0]}: {said}")
    return done.stdout.decode("utf-8", errors="surrogateescape")
