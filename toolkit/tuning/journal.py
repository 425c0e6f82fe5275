"""The append-only record of a run: one line per round, safe against Ctrl-C and kill -9.

    {"schema": 1, "digest": "...", "settings": {...}}                  first line
    {"round": "<key>", "runs": [{...}, ...]}                           one per finished round

A line is flushed to disk before the next round starts; a torn last line is dropped on reading.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.errors import InputError, RunError
from toolkit.measure.records import GroupRun
from toolkit.store import digest

SCHEMA = 1


class Journal:
    """Rounds measured under one set of settings; other settings have another file."""

    def __init__(self, directory: Path, settings: Mapping[str, Any]) -> None:
        self.settings = dict(settings)
        self.digest = digest({"schema": SCHEMA, **self.settings})
        self.path = directory / f"journal-{self.digest[:12]}.jsonl"

    def clear(self) -> None:
        """Forget what an earlier run with these settings measured."""
        self.path.unlink(missing_ok=True)

    def load(self) -> dict[str, list[GroupRun]]:
        """Round key -> its runs; cuts a torn last line off, so that the next one stands alone."""
        if not self.path.exists():
            return {}
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(self.path, len(whole))
        lines = whole.splitlines()
        try:
            if lines and json.loads(lines[0])["digest"] != self.digest:
                raise self._damaged(1)
            return dict(self._parse(line, n) for n, line in enumerate(lines[1:], 2))
        except (ValueError, KeyError, TypeError):
            raise self._damaged(1) from None

    def append(self, key: str, runs: Sequence[GroupRun]) -> None:
        """Write one finished round through to the disk."""
        line = {"round": key, "runs": [run.to_json() for run in runs]}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                if file.tell() == 0:
                    head = {"schema": SCHEMA, "digest": self.digest, "settings": self.settings}
                    file.write(json.dumps(head) + "\n")
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(
                f"{self.path}: {error.strerror}; the rounds before this one are kept, "
                "and the same command goes on from there"
            ) from None

    def _parse(self, line: bytes, number: int) -> tuple[str, list[GroupRun]]:
        try:
            entry = json.loads(line)
            return str(entry["round"]), [GroupRun.from_json(run) for run in entry["runs"]]
        except (ValueError, KeyError, TypeError):
            raise self._damaged(number) from None

    def _damaged(self, number: int) -> InputError:
        return InputError(
            f"{self.path}:{number}: not a line of a tuning journal; "
            "remove the file, or start over with --fresh"
        )
