"""`spectool store`: what has been built, whether it is intact, and what may go."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolkit.commands.options import Json, RequireSignature, StoreDir
from toolkit.commands.store_channels import channels, deploy, promote, rollback
from toolkit.commands.store_sharing import pull, push

if TYPE_CHECKING:
    from toolkit.store import Store

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="List, verify, share, promote and prune artefacts.",
)
app.command("pull")(pull)
app.command("push")(push)
app.command("promote")(promote)
app.command("rollback")(rollback)
app.command("channels")(channels)
app.command("deploy")(deploy)


@app.command("ls")
def ls(store: StoreDir = None, as_json: Json = False) -> None:
    """List every artefact: kind, digest, size, age."""
    from toolkit.commands.table import age, size, table
    from toolkit.store import open_store

    shelf = open_store(store).shelf
    entries = list(shelf.entries())
    if as_json:
        print(json.dumps(entries, indent=2))
        return
    rows = [
        [e["kind"], e["digest"], size(e["bytes"]), age(e["made_by"]["time"]), _about(e)]
        for e in entries
    ]
    if rows:
        print(table(rows, ("kind", "digest", "size", "made", "from"), right="  rr"))
    total = size(sum(entry["bytes"] for entry in entries))
    print(f"{len(entries)} artefact(s), {total} in {shelf}")


@app.command("verify")
def verify(
    store: StoreDir = None,
    require_signature: RequireSignature = False,
    as_json: Json = False,
) -> None:
    """Compare every file with the sha256 in its manifest."""
    from toolkit.errors import RunError
    from toolkit.progress import progress
    from toolkit.store import open_store

    shelf = open_store(store, require_signature=require_signature).shelf
    entries = list(shelf.entries())
    damaged = {}
    with progress("verify", sum(entry["bytes"] for entry in entries)) as bar:
        for entry in entries:
            if problems := [*shelf.problems(entry, bar.advance), *shelf.distrusted(entry)]:
                damaged[entry["path"]] = problems
    if as_json:
        print(json.dumps({"checked": len(entries), "damaged": damaged}, indent=2))
    else:
        for path, problems in damaged.items():
            print("\n".join([path, *(f"  {problem}" for problem in problems)]))
        print(f"{len(entries) - len(damaged)} of {len(entries)} artefact(s) intact")
    if damaged:
        raise RunError("damaged artefacts: remove them with `spectool store prune --damaged`")


@app.command("prune")
def prune(
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep-used-by",
            "--keep",
            metavar="RECIPE|DIR",
            help="Remove all but what this recipe, or every recipe in a directory, needs.",
        ),
    ] = None,
    older_than: Annotated[
        float | None, typer.Option("--older-than", metavar="DAYS", min=0, help="Remove by age.")
    ] = None,
    damaged: Annotated[bool, typer.Option("--damaged", help="Remove what verify refuses.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Remove every artefact.")] = False,
    sources: Annotated[
        bool, typer.Option("--sources", help="Remove downloaded checkpoints too.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    store: StoreDir = None,
    as_json: Json = False,
) -> None:
    """Remove artefacts by the rules given, and leftovers.

    What a channel of a shared store names, or may go back to, stays unless it is damaged.
    """
    from toolkit.commands.table import size
    from toolkit.commands.used import used_by
    from toolkit.store import open_store

    where = open_store(store)
    shelf = where.shelf
    rules: list[Any] = []
    if everything:
        rules.append(lambda entry: True)
    if older_than is not None:
        rules.append(lambda entry: _days(entry) > older_than)
    if keep:
        used = used_by(keep, where)
        rules.append(lambda entry: not used(entry))

    promoted = shelf.in_use() if rules else set()

    def stays(entry: dict[str, Any]) -> bool:
        if damaged and shelf.problems(entry):
            return False
        return (entry["kind"], entry["digest"]) in promoted or not any(
            rule(entry) for rule in rules
        )

    if dry_run:
        gone = [entry for entry in shelf.entries() if not stays(entry)]
    else:
        gone = shelf.prune(stays)
    downloads = _downloads(where, remove=not dry_run) if sources else 0
    if as_json:
        summary = {"removed": gone, "downloaded_bytes": downloads, "dry_run": dry_run}
        print(json.dumps(summary, indent=2))
        return
    for entry in gone:
        print(f"{entry['kind']:<12}{entry['digest']}  {_about(entry)}")
    verb = "would be removed" if dry_run else "removed"
    total = size(sum(entry["bytes"] for entry in gone))
    fetched = f", {size(downloads)} of downloads" if sources else ""
    print(f"{len(gone)} artefact(s), {total}{fetched} {verb}")


def _downloads(where: Store, *, remove: bool) -> int:
    """Bytes of fetched checkpoints in the store, and their removal."""
    folder = where.root / "sources"
    found = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if remove:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _days(entry: dict[str, Any]) -> float:
    from toolkit.commands.table import seconds_since

    return seconds_since(entry["made_by"]["time"]) / 86400


def _about(entry: dict[str, Any]) -> str:
    """What an artefact was made from, in a few words."""
    spec = entry["spec"]
    source = spec.get("source")
    if isinstance(source, dict):
        known = (str(source[key]) for key in ("pip", "hub", "id", "package") if key in source)
        return next(known, "local files")
    return f"checkpoint {str(spec.get('checkpoint', ''))[:12]}"
