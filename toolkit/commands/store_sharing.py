"""`spectool store push` and `pull`: artefacts between this machine and a shared store."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolkit.commands.options import Json, RequireSignature, StoreDir

if TYPE_CHECKING:
    from toolkit.store.shared import SharedStore

What = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[WHAT]...",
        help="Recipes, directories of recipes, or digests (the first six digits or more).",
    ),
]
Everything = Annotated[bool, typer.Option("--all", help="Every artefact.")]
_DIGEST = re.compile(r"(?:[a-z_]+/)?([0-9a-f]{6,32})")


def pull(
    what: What = None,
    everything: Everything = False,
    store: StoreDir = None,
    require_signature: RequireSignature = False,
    as_json: Json = False,
) -> None:
    """Copy artefacts of a shared store to this machine, checked."""
    where = shared_store(store, require_signature=require_signature)
    wanted = _chosen(what or (), everything, where, where.remote.entries)
    here = [pair for pair in wanted if where.here(*pair)]
    rest = [pair for pair in wanted if pair not in here]
    missing = [pair for pair in rest if not where.pull(*pair)]
    done = [pair for pair in rest if pair not in missing]
    _say("pulled", done, "here already", here, missing, where, as_json)


def push(
    what: What = None,
    everything: Everything = False,
    store: StoreDir = None,
    as_json: Json = False,
) -> None:
    """Copy artefacts of this machine to a shared store, checked."""
    where = shared_store(store)
    wanted = _chosen(what or (), everything, where, where.entries)
    missing = [pair for pair in wanted if not where.here(*pair)]
    done = [pair for pair in wanted if pair not in missing and where.push(*pair)]
    there = [pair for pair in wanted if pair not in missing and pair not in done]
    _say("pushed", done, "there already", there, missing, where, as_json)


def shared_store(store: str | None, *, require_signature: bool = False) -> SharedStore:
    """The store at a URL; a directory is nobody's but this machine's."""
    from toolkit.errors import InputError
    from toolkit.store import open_store
    from toolkit.store.shared import SharedStore

    where = open_store(store, require_signature=require_signature)
    if not isinstance(where, SharedStore):
        raise InputError(
            f"{where}: a directory; name the shared store with --store or $SPECTOOL_STORE "
            "(s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, file:///DIRECTORY)"
        )
    return where


def _chosen(
    words: Sequence[str],
    everything: bool,
    where: SharedStore,
    entries: Callable[[], Iterable[dict[str, Any]]],
) -> list[tuple[str, str]]:
    """(kind, digest) of what the words name, each once."""
    from toolkit.commands.used import plans_of, recipe_names
    from toolkit.errors import InputError

    if everything == bool(words):
        raise InputError("say which: recipes or digests, or --all")
    found = [(e["kind"], e["digest"]) for e in entries()] if everything else []
    digests = [word for word in words if _DIGEST.fullmatch(word)]
    known = list(entries()) if digests else []
    for word in digests:
        kind, _, start = word.rpartition("/")
        match = [
            (e["kind"], e["digest"])
            for e in known
            if e["digest"].startswith(start) and kind in ("", e["kind"])
        ]
        if not match:
            raise InputError(f"{word}: no artefact with this digest")
        found += match
    recipes = recipe_names([word for word in words if word not in digests])
    for name, plan in plans_of(recipes, where):
        if not plan.complete:
            raise InputError(
                f"{name}: not every digest is known on this machine; name digests instead "
                "(spectool store ls), or build it here"
            )
        found += [(a.kind, str(a.digest)) for a in plan.artefacts]
    return list(dict.fromkeys(found))


def _say(
    verb: str,
    done: Sequence[tuple[str, str]],
    idle: str,
    others: Sequence[tuple[str, str]],
    missing: Sequence[tuple[str, str]],
    where: SharedStore,
    as_json: bool,
) -> None:
    from toolkit.errors import RunError

    names = {
        key: ["/".join(pair) for pair in pairs]
        for key, pairs in ((verb, done), (idle.replace(" ", "_"), others), ("missing", missing))
    }
    if as_json:
        print(json.dumps({"store": str(where), **names}, indent=2))
    else:
        for name in names[verb]:
            print(f"{verb} {name}")
        print(f"{len(done)} artefact(s) {verb}, {len(others)} {idle}; {where}")
    if missing:
        place = str(where) if verb == "pulled" else str(where.root)
        raise RunError("\n  ".join((f"not in {place}:", *names["missing"])))
