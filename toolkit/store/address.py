"""`s3://bucket/prefix` and its like: which stores there are, and what a URL of one may say."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.errors import InputError
from toolkit.registry import Registry

PLACES = Registry(
    "store protocol",
    {
        "file": "toolkit.store.places.file:FilePlace",
        "gs": "toolkit.store.places.gs:GsPlace",
        "s3": "toolkit.store.places.s3:S3Place",
    },
)
_MARK = "://"


@dataclass(frozen=True)
class Address:
    """Where a shared store is; never with credentials in it, so it may be printed."""

    protocol: str
    path: str  # bucket/prefix, or an absolute path for `file`

    def __str__(self) -> str:
        return f"{self.protocol}{_MARK}{self.path}"


def is_url(text: str) -> bool:
    """Whether this names a shared store and not a directory."""
    return _MARK in text


def parse_address(text: str) -> Address:
    """The address, or an error that repeats nothing of a URL in which a secret may stand."""
    protocol, _, rest = text.partition(_MARK)
    host = rest.partition("/")[0]
    if "@" in host or ":" in host or "?" in rest or "#" in rest:
        raise InputError(
            f"--store {protocol}://...: credentials, ports and parameters do not belong in the "
            "URL; they come from the environment (for s3: AWS_PROFILE, AWS_ACCESS_KEY_ID, "
            "AWS_ENDPOINT_URL; for gs: GOOGLE_APPLICATION_CREDENTIALS)"
        )
    if protocol not in PLACES:
        return PLACES[protocol]  # type: ignore[no-any-return]  # raises, naming those that are
    path = rest.rstrip("/")
    body = path.removeprefix("/") if protocol == "file" else path
    wanted = "file:///absolute/path" if protocol == "file" else f"{protocol}://BUCKET/PREFIX"
    if protocol == "file" and not path.startswith("/"):
        raise InputError(f"{text}: not an absolute path; a shared directory is {wanted}")
    if any(piece in ("", ".", "..") for piece in body.split("/")):
        raise InputError(f"{text}: an empty, '.' or '..' piece in the path; expected {wanted}")
    return Address(protocol, path)
