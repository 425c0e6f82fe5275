"""`spectool store promote`, `rollback`, `channels`, `deploy`: which tuned set is served where."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.commands.options import Json, RequireSignature, StoreDir
from toolkit.commands.store_sharing import shared_store

if TYPE_CHECKING:
    from toolkit.store.channels import Release

Service = Annotated[
    str, typer.Argument(metavar="SERVICE", help="Name of the recipe that is served.")
]


def promote(
    what: Annotated[
        str,
        typer.Argument(
            metavar="REPOSITORY|SERVICE",
            help="A Triton repository of spectool repo; with --from: the name of its recipe.",
        ),
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="CHANNEL", help="For example staging or production.")
    ],
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="CHANNEL", help="Take what is current in this channel."),
    ] = None,
    store: StoreDir = None,
    require_signature: RequireSignature = False,
    as_json: Json = False,
) -> None:
    """Make a Triton repository and its engines current in a channel."""
    from toolkit.serving.moved import share_repository
    from toolkit.store.channels import Channels, checked_name

    where = shared_store(store, require_signature=require_signature)
    channels = Channels(where.remote)
    checked_name(to, "channel")
    if source is None:
        artefacts, service = share_repository(Path(what), where)
        for pair in artefacts:
            where.share(*pair)
        release = channels.promote(service, to, artefacts, "from a repository")
    else:
        found = channels.current(what, source)
        release = channels.promote(what, to, found.artefacts, f"from {source} #{found.number}")
    _say(release, as_json)


def rollback(
    service: Service,
    channel: Annotated[str, typer.Option("--in", metavar="CHANNEL", help="Which one goes back.")],
    store: StoreDir = None,
    require_signature: RequireSignature = False,
    as_json: Json = False,
) -> None:
    """Make current again what was before; twice, what was before that."""
    from toolkit.store.channels import Channels

    where = shared_store(store, require_signature=require_signature)
    _say(Channels(where.remote).rollback(service, channel), as_json)


def channels(
    service: Annotated[
        str | None, typer.Argument(metavar="[SERVICE]", help="With its whole history.")
    ] = None,
    store: StoreDir = None,
    require_signature: RequireSignature = False,
    as_json: Json = False,
) -> None:
    """List what is current in every channel."""
    from toolkit.commands.table import age, table
    from toolkit.store.channels import Channels

    where = shared_store(store, require_signature=require_signature)
    known = Channels(where.remote)
    found = known.all()
    if service is not None:
        mine = [release for release in found if release.service == service]
        found = [r for release in mine for r in known.history(service, release.channel)]
    if as_json:
        print(json.dumps([asdict(release) for release in found], indent=2))
        return
    rows = [
        [r.service, r.channel, f"#{r.number}", age(r.time), r.artefacts[0][1][:12], r.why]
        for r in found
    ]
    header = ("service", "channel", "release", "since", "repository", "why")
    print(table(rows, header) if rows else f"nothing was promoted in {where}")


def deploy(
    service: Service,
    channel: Annotated[
        str, typer.Option("--from", metavar="CHANNEL", help="Which release: the current one of it.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Where to write it.")],
    force: Annotated[
        bool, typer.Option("--force", help="Replace a repository that was edited by hand.")
    ] = False,
    store: StoreDir = None,
    require_signature: RequireSignature = False,
    as_json: Json = False,
) -> None:
    """Write the Triton repository of a channel here, with its engines."""
    from toolkit.serving.lint import lint, raise_errors
    from toolkit.serving.moved import deploy_repository
    from toolkit.store.channels import Channels

    where = shared_store(store, require_signature=require_signature)
    release = Channels(where.remote).current(service, channel)
    written = deploy_repository(release.artefacts[0][1], where, out, force=force)
    raise_errors(written, lint(written))
    if as_json:
        print(json.dumps({"repository": str(written), **asdict(release)}, indent=2))
        return
    print(f"{written}: {release.name}, {release.why}\nnext: spectool serve {out}")


def _say(release: Release, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(release), indent=2))
        return
    repository = release.artefacts[0][1]
    others = len(release.artefacts) - 1
    print(f"{release.name}: repository {repository[:12]} and {others} artefact(s), {release.why}")
