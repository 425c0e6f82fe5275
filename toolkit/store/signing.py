"""Signed manifests, in minisign's format: made and checked with key files, without any network.

A manifest names every file with its sha256, so one signature over it covers the artefact. Sigstore
would need its certificate authority and log for each signature; a key file is there when they are
not, and `minisign -V` checks the same signatures.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from toolkit.errors import InputError, RunError
from toolkit.optional import require

SIGNING_KEY = "SPECTOOL_SIGNING_KEY"
PASSWORD = "SPECTOOL_SIGNING_PASSWORD"
TRUSTED_KEYS = "SPECTOOL_TRUSTED_KEYS"


class DistrustedError(RunError):
    """Signatures are required, and an artefact does not have a good one."""


def _minisign() -> Any:
    return require("minisign", extra="sign", why="a signed manifest")


class Signer:
    """Signs with the secret key in the file that `$SPECTOOL_SIGNING_KEY` names."""

    def __init__(self, path: Path, password: str | None) -> None:
        self.path, self._password = path, password

    @classmethod
    def from_environment(cls) -> Signer | None:
        path = os.environ.get(SIGNING_KEY)
        return cls(Path(path).expanduser(), os.environ.get(PASSWORD)) if path else None

    def sign(self, data: bytes, about: str) -> bytes:
        """The signature file; `about` is its trusted comment."""
        minisign = _minisign()
        try:
            with minisign.SecretKey.from_file(str(self.path)) as key:
                if key.is_encrypted():
                    if self._password is None:
                        raise InputError(
                            f"{self.path}: has a password; give it in ${PASSWORD}, or use a key "
                            "made without one (minisign -G -W)"
                        )
                    key.decrypt(self._password)
                return bytes(key.sign(data, trusted_comment=about))
        except (minisign.Error, OSError, ValueError) as error:
            raise InputError(
                f"${SIGNING_KEY}: {self.path} is not usable as a minisign secret key "
                f"({type(error).__name__})"
            ) from None


class Trust:
    """Accepts what one of the public keys in a file has signed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise InputError(f"${TRUSTED_KEYS}: {path}: not readable: {error}") from None
        minisign = _minisign()
        texts = [line.strip() for line in lines if line.strip()]
        try:
            self._keys = [
                minisign.PublicKey.from_base64(text)
                for text in texts
                if not text.startswith(("untrusted comment:", "#"))
            ]
        except (minisign.Error, ValueError):
            raise InputError(f"{path}: not a file of minisign public keys, one a line") from None
        if not self._keys:
            raise InputError(f"{path}: no public key in it")

    @classmethod
    def from_environment(cls, *, wanted: bool) -> Trust | None:
        """The keys in `$SPECTOOL_TRUSTED_KEYS`; to set it is to require signatures."""
        if path := os.environ.get(TRUSTED_KEYS):
            return cls(Path(path).expanduser())
        if wanted:
            raise InputError(
                f"--require-signature: set ${TRUSTED_KEYS} to a file with the minisign public keys "
                "that you trust, one a line"
            )
        return None

    def accepts(self, data: bytes, signature: bytes | None) -> bool:
        """Whether one of the keys made `signature` over `data`."""
        minisign = _minisign()
        try:
            found = minisign.Signature.from_bytes(signature or b"")
        except (minisign.Error, ValueError, IndexError):
            return False
        for key in self._keys:
            try:
                key.verify(data, found)
            except (minisign.Error, ValueError):
                continue
            return True
        return False
