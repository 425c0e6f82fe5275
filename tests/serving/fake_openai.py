"""A server of /v1/completions on loopback; its model is a table, letter -> next letter's logits."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from numpy.typing import NDArray

LETTERS = "abcdefghij "


def table(seed: int = 0) -> NDArray[np.float64]:  # [V, V]
    return np.random.default_rng(seed).normal(0, 2, (len(LETTERS),) * 2)


class FakeOpenAi:
    """`with FakeOpenAi(table()) as server: server.url`; what it was asked is in `bodies`."""

    def __init__(
        self,
        logits: NDArray[np.float64],
        *,
        logprobs: bool = True,
        ignores_seed: bool = False,
        warmth: float = 1.0,  # temperatures are multiplied by this: a sampling bug
    ) -> None:
        self.logits, self.logprobs, self.ignores_seed = logits, logprobs, ignores_seed
        self.warmth = warmth
        self.bodies: list[dict[str, Any]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FakeOpenAi:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self.bodies.append(body)
        rng = np.random.default_rng(0 if self.ignores_seed else body.get("seed", 0))
        last = body["prompt"][-1]
        row, text, tops = LETTERS.find(last), "", []
        for _ in range(body["max_tokens"]):
            logits = self.logits[row]
            normal = logits - np.log(np.exp(logits).sum())
            best = np.argsort(-normal)[: body["logprobs"]]
            tops.append({LETTERS[i]: float(normal[i]) for i in best})
            if temperature := body["temperature"]:
                warm = np.exp(logits / (temperature * self.warmth))
                row = int(rng.choice(len(LETTERS), p=warm / warm.sum()))
            else:
                row = int(best[0])
            text += LETTERS[row]
        choice: dict[str, Any] = {"text": text, "finish_reason": "length"}
        if self.logprobs:
            choice["logprobs"] = {"tokens": list(text), "top_logprobs": tops}
        return {"choices": [choice]}


def _handler(fake: FakeOpenAi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            known = self.path == "/v1/models"
            self._send(200 if known else 404, {"data": [{"id": "toy"}]} if known else {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._send(200, fake.complete(body))

        def _send(self, status: int, document: dict[str, Any]) -> None:
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler
