"""`s3://`: Amazon S3 and whatever speaks its protocol (AWS_ENDPOINT_URL), through s3fs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from toolkit.store.places.place import Place, Verdict

# Codes that s3fs counts as a bad request, though the same bytes sent again are good ones; and one
# of two conditional writes at once, which has to ask again.
_AGAIN = {
    "BadDigest", "ConditionalRequestConflict", "IncompleteBody", "OperationAborted",
    "RequestTimeout", "XAmzContentSHA256Mismatch",
}  # fmt: skip
_WRONG = {"NoSuchBucket"}
_CODE = re.compile(r"[A-Za-z0-9.]{1,60}")


class S3Place(Place):
    """Credentials, region and endpoint come from where every AWS tool takes them."""

    package: ClassVar[str] = "s3fs"
    extra: ClassVar[str] = "s3"
    libraries: ClassVar[tuple[str, ...]] = ("aiobotocore", "botocore", "aiohttp")
    hint: ClassVar[str] = (
        "; which bucket, AWS_PROFILE, AWS_ACCESS_KEY_ID or role is meant, and may it do this?"
    )

    def options(self) -> dict[str, Any]:
        # Repeating is ours to do (Place): one try here, so that a wrong address is said soon.
        return {
            "max_concurrency": 1,
            "config_kwargs": {
                "connect_timeout": 4,
                "read_timeout": 60,
                "retries": {"total_max_attempts": 1},
            },
        }

    def __init__(self, address: Any) -> None:
        super().__init__(address)
        self.fs.retries = 1

    def failures(self) -> tuple[type[Exception], ...]:
        from aiohttp import ClientError as HttpError
        from botocore.exceptions import BotoCoreError, ClientError

        return BotoCoreError, ClientError, HttpError, ValueError  # of a malformed endpoint

    def verdict(self, error: Exception) -> Verdict:
        from botocore import exceptions

        code = self._aws_code(error)
        if code in _AGAIN:
            return Verdict.AGAIN
        if code in _WRONG:
            return Verdict.WRONG
        if code == "PreconditionFailed":  # the only condition that we ever set: it must not exist
            return Verdict.EXISTS
        settings = (
            exceptions.NoCredentialsError, exceptions.PartialCredentialsError,
            exceptions.NoRegionError, exceptions.ProfileNotFound, exceptions.ConfigParseError,
            exceptions.InvalidConfigError, exceptions.ParamValidationError,
            exceptions.EndpointProviderError, ValueError,
        )  # fmt: skip
        return Verdict.WRONG if isinstance(error, settings) else super().verdict(error)

    def code(self, error: Exception) -> str:
        return self._aws_code(error) or super().code(error)

    def unreachable(self, error: Exception) -> bool:
        from botocore import exceptions

        return isinstance(
            error,
            (
                exceptions.EndpointConnectionError,
                exceptions.ConnectTimeoutError,
                exceptions.ProxyConnectionError,
            ),
        )

    def _read(self, path: str) -> bytes:
        from botocore.exceptions import FlexibleChecksumError

        try:
            return super()._read(path)
        except FlexibleChecksumError:
            return b""

    def _aws_code(self, error: Exception) -> str | None:
        """The code of the server's answer, when this is one."""
        answer = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
        code = answer.get("Error", {}).get("Code") if isinstance(answer, Mapping) else None
        return code if isinstance(code, str) and _CODE.fullmatch(code) else None

    def modified(self, info: Mapping[str, Any]) -> float:
        return float(info["LastModified"].timestamp())
