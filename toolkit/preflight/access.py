"""What a check opens: what is on this disk. The rest only when it was asked to fetch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.checkpoint.heads.source import heads_here
from toolkit.checkpoint.small_files import small_files_here
from toolkit.checkpoint.source import is_here, kind_of
from toolkit.preflight.report import Finding
from toolkit.store import Store


@dataclass(frozen=True)
class Access:
    """Answers are about this disk, unless fetching was asked for: then all is there."""

    store: Store
    fetch: bool = False
    offline_asked: bool | None = None

    @property
    def offline(self) -> bool | None:
        """As the openers of sources understand it."""
        return self.offline_asked if self.fetch else True

    def has_weights(self, checkpoint: str, revision: str | None) -> bool:
        return self.fetch or is_here(checkpoint, revision, store=self.store)

    def has_small_files(self, checkpoint: str, revision: str | None) -> bool:
        away = not self.fetch and kind_of(checkpoint) == "hub"
        return not away or small_files_here(checkpoint, revision) is not None

    def has_heads(self, checkpoint: str, revision: str | None, files: Sequence[str]) -> bool:
        return self.fetch or heads_here(checkpoint, revision, files)


def not_fetched(where: str, name: str, unchecked: str) -> Finding:
    """The note about a source that lies elsewhere."""
    return Finding(
        where,
        f"{name}: not fetched yet, so its {unchecked} were not checked; `spectool check --fetch` "
        "or `spectool build` fetches it",
        "note",
    )
