"""An object store under one prefix, through fsspec: few verbs, and each waits out a bad minute.

What a library says about a failure may hold keys, tokens or signed URLs. So no text of theirs is
ever repeated, nor logged: an error names the store, the object, and the error's code.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, TypeVar

from toolkit.errors import RunError
from toolkit.optional import require
from toolkit.store.address import Address

T = TypeVar("T")

# How long a store may be silent, and how long an address where nobody ever listened. A network that
# is lost for a minute comes back within the first; a wrong address is said within the second.
PATIENCE_S = 180.0
FIRST_ANSWER_S = 7.0
_LONGEST_PAUSE_S = 10.0


class Verdict(Enum):
    """What a failed call means for whoever called."""

    MISSING = "no such object"
    EXISTS = "somebody was first"
    REFUSED = "not allowed"
    AGAIN = "may work in a moment"
    WRONG = "will never work"


@dataclass(frozen=True)
class Object:
    """What a listing says: name below the prefix, bytes, and seconds by the store's own clock."""

    name: str
    size: int
    modified: float


class Place(ABC):
    """One prefix; safe to use from several threads."""

    package: ClassVar[str]
    extra: ClassVar[str]
    libraries: ClassVar[tuple[str, ...]] = ()  # below it, that log too
    hint: ClassVar[str] = ""  # where its credentials usually come from

    def __init__(self, address: Address) -> None:
        self.address = address
        self._answered = False
        self._stopped = threading.Event()
        for library in (self.package, *self.libraries):  # their text may hold what nobody may read
            logging.getLogger(library).setLevel(logging.CRITICAL + 1)
        require(self.package, extra=self.extra, why=f"--store {address.protocol}://")
        fsspec = require("fsspec", extra=self.extra, why="a shared store")
        self.fs: Any = fsspec.filesystem(
            address.protocol, skip_instance_cache=True, use_listings_cache=False, **self.options()
        )

    def options(self) -> dict[str, Any]:
        """How fsspec's file system of this protocol is opened."""
        return {}

    @abstractmethod
    def failures(self) -> tuple[type[Exception], ...]:
        """What calls raise besides OSError."""

    def verdict(self, error: Exception) -> Verdict:
        """By the meaning that fsspec gives to Python's own exceptions."""
        number = error.errno if isinstance(error, OSError) else None
        if isinstance(error, FileNotFoundError):
            return Verdict.MISSING
        if isinstance(error, FileExistsError):
            return Verdict.EXISTS
        if isinstance(error, PermissionError) or number in (errno.EPERM, errno.EROFS):
            return Verdict.REFUSED
        return Verdict.WRONG if number in _NEVER else Verdict.AGAIN

    def code(self, error: Exception) -> str:
        """A few words about a failure, none of them a library's or a server's free text."""
        number = error.errno if isinstance(error, OSError) else None
        if number is not None and number in errno.errorcode:
            return os.strerror(number)
        return type(error).__name__

    def unreachable(self, error: Exception) -> bool:
        """Whether nobody listens there: a wrong address, unless the store answered before."""
        return False

    @abstractmethod
    def modified(self, info: Mapping[str, Any]) -> float:
        """Seconds since the epoch when the object of a listing was written."""

    def read(self, name: str) -> bytes:
        """All bytes of one object, as the store gives them; FileNotFoundError when there is none.

        Callers know what they expect and compare. None of them expects nothing, which they get
        for bytes that the store's own client already refused.
        """
        return self._patiently("read", name, lambda: self._read(self._full(name)))

    def put(self, name: str, data: bytes) -> None:
        """Write one object, in place of an older one: a reader sees the old or the new."""
        self._patiently("write", name, lambda: self._write(self._full(name), data))

    def create(self, name: str, data: bytes) -> bool:
        """Write one object only if there is none: of several writers one is told True.

        After a lost answer the truth is in the object itself, so callers compare what is there.
        """
        try:
            self._patiently("write", name, lambda: self._create(self._full(name), data))
        except FileExistsError:
            return False
        return True

    def delete(self, name: str) -> None:
        """Remove one object, which may be gone already."""
        try:
            self._patiently("delete", name, lambda: self.fs.rm_file(self._full(name)))
        except FileNotFoundError:
            return

    def listing(self, prefix: str) -> list[Object]:
        """Every object below `prefix`, by name."""

        def find() -> list[Object]:
            found = self.fs.find(self._full(prefix), detail=True)
            start = len(self.address.path.lstrip("/")) + 1
            return [
                Object(name.lstrip("/")[start:], int(info["size"]), self.modified(info))
                for name, info in sorted(found.items())
                # Of an empty prefix s3fs asks whether it is a directory: by then it may be one.
                if info["type"] != "directory"
            ]

        try:
            return self._patiently("list", prefix, find)
        except FileNotFoundError:
            return []

    def stop(self) -> None:
        """Let threads that wait for this store end at once."""
        self._stopped.set()

    def _read(self, path: str) -> bytes:
        return bytes(self.fs.cat_file(path))

    def _write(self, path: str, data: bytes) -> None:
        self.fs.pipe_file(path, data)

    def _create(self, path: str, data: bytes) -> None:
        self.fs.pipe_file(path, data, mode="create")

    def _full(self, name: str) -> str:
        return f"{self.address.path}/{name}"

    def _patiently(self, verb: str, name: str, call: Callable[[], T]) -> T:
        """Call until it works, is refused, or the store has been silent for too long."""
        expected: tuple[type[Exception], ...] = (OSError, *self.failures())
        started, pause = time.monotonic(), 0.2
        while True:
            try:
                result = call()
                self._answered = True
                return result
            except expected as error:
                verdict = self.verdict(error)
                if verdict in (Verdict.MISSING, Verdict.EXISTS):
                    if verdict is Verdict.MISSING:
                        raise FileNotFoundError(name) from None
                    raise FileExistsError(name) from None
                silent = time.monotonic() - started
                wrong_address = not self._answered and self.unreachable(error)
                limit = FIRST_ANSWER_S if wrong_address else PATIENCE_S
                if verdict is not Verdict.AGAIN or silent + pause > limit:
                    raise self._failure(verb, name, verdict, error, silent) from None
            if self._stopped.wait(pause):
                raise RunError(f"{self.address}: stopped")
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _failure(
        self, verb: str, name: str, verdict: Verdict, error: Exception, silent: float
    ) -> RunError:
        what = f"{self.address}: cannot {verb} {name}: {self.code(error)}"
        if verdict is Verdict.REFUSED:
            return RunError(f"{what}. The store answers, but refuses this to you{self.hint}")
        if verdict is Verdict.AGAIN:
            reached = "no answer" if not self._answered else "no good answer"
            return RunError(
                f"{what} ({reached} for {silent:.0f} s). Nothing half-written is visible, "
                "and the same command continues where this one stopped"
            )
        return RunError(f"{what}{self.hint if verdict is Verdict.WRONG else ''}")


# What no second try changes: a bad name or request, a full disk, something unsupported.
_NEVER = {
    getattr(errno, name)
    for name in (
        "EINVAL", "ENAMETOOLONG", "EMSGSIZE", "ENOSYS", "EREMCHG", "ENOSPC", "EDQUOT", "ENOTDIR",
        "EISDIR", "ELOOP",
    )
}  # fmt: skip
