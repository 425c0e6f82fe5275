"""Plain HTTP to a running trtllm-serve: JSON, text, and events as they come."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from toolkit.errors import InputError, RunError

_MAX_BODY = 256 << 20
_MAX_LINE = 4 << 20


class Server:
    """Where a server is, and how long it may be silent."""

    def __init__(self, url: str, *, timeout_s: float) -> None:
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise InputError(f"{url}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise InputError(f"{url}: expected a URL like http://127.0.0.1:8000")
        place = parts.netloc.rpartition("@")[2]  # errors name the URL, never a password in it
        self.url = f"{parts.scheme}://{place}{parts.path.rstrip('/')}"
        self.timeout_s = timeout_s
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port, self._path = parts.hostname, port, parts.path.rstrip("/")

    def text(self, path: str, *, hint: str = "") -> str:
        """The body of a GET; `hint` follows a 404."""
        with Exchange(self, "GET", path, hint=hint) as exchange:
            return exchange.body()

    def json(self, path: str, *, hint: str = "") -> Any:
        text = self.text(path, hint=hint)
        try:
            return json.loads(text)
        except ValueError:
            raise RunError(f"{self.url}{path}: not JSON: {text[:200]!r}") from None

    def connect(self) -> HTTPConnection:
        return self._kind(self._host, self._port, timeout=self.timeout_s)

    def full_path(self, path: str) -> str:
        return f"{self._path}{path}"


class Exchange:
    """One request and its response; every failure is a RunError that names the URL."""

    def __init__(
        self,
        server: Server,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        hint: str = "",
    ) -> None:
        self.where = f"{server.url}{path}"
        self._timeout_s = server.timeout_s
        self._hint = hint
        self._connection = server.connect()
        self._closed = False
        self._socket: socket.socket | None = None
        headers = {"Content-Type": "application/json"} if body is not None else {}
        data = None if body is None else json.dumps(body).encode()
        try:
            self._connection.request(method, server.full_path(path), data, headers)
            self._socket = self._connection.sock  # the response may take it over
            self._response = self._connection.getresponse()
        except (OSError, HTTPException, UnicodeError) as error:  # the last: a host no name can be
            self.close()
            raise self.failure(error) from None
        if self._response.status != 200:
            refused = self._refusal(self._response)
            self.close()
            raise refused

    def body(self) -> str:
        try:
            data = self._response.read(_MAX_BODY)
        except (OSError, HTTPException) as error:
            raise self.failure(error) from None
        return data.decode("utf-8", errors="replace")

    def lines(self) -> Iterator[str]:
        """Lines as they come; the end of the response ends them."""
        while True:
            try:
                line = self._response.readline(_MAX_LINE)
            except (OSError, HTTPException, ValueError) as error:  # ValueError: closed under us
                raise self.failure(error) from None
            if not line:
                return
            yield line.decode("utf-8", errors="replace").rstrip("\r\n")

    def close(self) -> None:
        """Also from another thread: a reader that waits is woken up."""
        if self._closed:
            return
        self._closed = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def failure(self, error: BaseException) -> RunError:
        if isinstance(error, TimeoutError):
            return RunError(f"{self.where}: silent for {self._timeout_s:g} s")
        if isinstance(error, ConnectionRefusedError):
            return RunError(f"{self.where}: connection refused; is trtllm-serve running there?")
        reason = str(error) or type(error).__name__
        return RunError(f"{self.where}: the connection broke: {reason}")

    def _refusal(self, response: HTTPResponse) -> RunError:
        try:
            text = response.read(64 << 10).decode("utf-8", errors="replace")
        except (OSError, HTTPException) as error:
            return self.failure(error)
        hint = f"; {self._hint}" if response.status == 404 and self._hint else ""
        return RunError(f"{self.where}: HTTP {response.status}: {said(text)}{hint}")

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def said(text: str) -> str:
    """What an error body says: OpenAI's, FastAPI's or plain."""
    try:
        found = json.loads(text)
    except ValueError:
        return text.strip()[:500] or "no message"
    if isinstance(found, dict):
        for key in ("message", "error", "detail"):
            value = found.get(key)
            if isinstance(value, dict):
                value = value.get("message")
            if value:
                return str(value)[:500]
    return text.strip()[:500]
