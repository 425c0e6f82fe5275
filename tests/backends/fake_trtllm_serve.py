"""A trtllm-serve on loopback: the documented endpoints, and a refusal of every unknown field.

`fault` breaks one thing, where the real server or the network may break it.
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.backends.fake_deployment import FakeDeployment

# CompletionRequest, whose extra fields are forbidden.
FIELDS = {
    "model", "prompt", "best_of", "echo", "frequency_penalty", "logit_bias", "logprobs",
    "max_tokens", "n", "presence_penalty", "seed", "stop", "stream", "stream_options", "suffix",
    "temperature", "top_p", "user", "lora_request", "prompt_ignore_length", "use_beam_search",
    "top_k", "top_p_min", "min_p", "repetition_penalty", "length_penalty", "early_stopping",
    "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens",
    "skip_special_tokens", "spaces_between_special_tokens", "truncate_prompt_tokens",
    "return_context_logits", "detokenize", "add_special_tokens", "response_format",
    "disaggregated_params",
}  # fmt: skip
ODD_EVENTS: dict[str, Any] = {
    "no choices": {"id": "cmpl-1"},
    "odd choice": {"choices": [1]},
    "a list": [],
}
STREAM_OPTIONS = {"include_usage", "continuous_usage_stats"}


class FakeTrtllmServe:
    """A server for one test: `with FakeTrtllmServe(deployment) as server: server.url`."""

    def __init__(
        self,
        deployment: FakeDeployment,
        *,
        fault: str | None = None,
        prefix: str = "",
        iteration_stats: bool = True,
        perf_metrics: bool = True,
    ) -> None:
        self.deployment, self.fault, self.prefix = deployment, fault, prefix
        self.iteration_stats, self.perf_metrics = iteration_stats, perf_metrics
        self.bodies: list[dict[str, Any]] = []
        self.disconnected = threading.Event()
        self.ended = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _handler(self))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FakeTrtllmServe:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()

    def prometheus(self) -> str:
        """Two label sets of one counter, and a histogram, as prometheus_client prints them."""
        drafted = sum(request.drafted for request in self.deployment.finished)
        accepted = sum(request.accepted for request in self.deployment.finished)
        done, name = len(self.deployment.finished), self.prefix
        lines = [
            f"# HELP {name}request_success_total Count of successfully processed requests.",
            f"# TYPE {name}request_success_total counter",
            f'{name}request_success_total{{finished_reason="length",model_name="m"}} {done}.0',
            f'{name}request_success_total{{finished_reason="stop",model_name="m"}} 0.0',
            f'{name}request_success_created{{model_name="m"}} 1.7e+09',
            f'{name}time_to_first_token_seconds_bucket{{le="+Inf",model_name="m"}} {done}.0',
        ]
        if name:  # the release without a prefix has no such counters
            lines += [
                f'{name}spec_decode_num_draft_tokens_total{{model_name="m"}} {drafted}.0',
                f'{name}spec_decode_num_accepted_tokens_total{{model_name="m"}} {accepted}.0',
            ]
        return "\n".join(lines) + "\n"


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # connections that wait; of more than these, clients see resets
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are part of the tests."""


def _handler(fake: FakeTrtllmServe) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                models = [] if fake.fault == "no models" else [{"id": "m", "object": "model"}]
                self._json({"object": "list", "data": models})
            elif self.path == "/metrics":
                log = fake.deployment.take_iterations()
                self._json(log if fake.iteration_stats else [])
            elif self.path == "/perf_metrics":
                done = fake.deployment.finished if fake.perf_metrics else []
                self._json([request.perf_metrics() for request in done])
            elif self.path == "/prometheus/metrics" and fake.perf_metrics:
                self._send(200, "text/plain; version=0.0.4", fake.prometheus().encode())
            elif self.path == "/html":
                self._send(200, "text/html", b"<html>a page of a proxy</html>")
            else:
                self._json({"detail": "Not Found"}, 404)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fake.bodies.append(body)
            unknown = sorted(set(body) - FIELDS)
            unknown += sorted(set(body.get("stream_options") or {}) - STREAM_OPTIONS)
            if self.headers["Content-Type"] != "application/json":
                self._refuse(400, "Input should be a valid dictionary")
            elif unknown:
                self._refuse(400, f"Extra inputs are not permitted: {', '.join(unknown)}")
            elif fake.fault == "500":
                self._refuse(500, "Internal server error")
            elif fake.fault == "hang":
                fake.ended.wait(5)
            else:
                self._stream(body)

        def _stream(self, body: dict[str, Any]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            request = fake.deployment.begin()
            answer = fake.deployment.answer(
                request,
                body["prompt"],
                body["max_tokens"],
                body.get("stop_token_ids") or [],
                body.get("ignore_eos", False),
            )
            for number, (tokens, reason) in enumerate(answer):
                if number == 2 and self._break(body):
                    return
                self._event(self._chunk(body, tokens, reason))
            if body["stream_options"]["include_usage"]:
                count = request.emitted + (fake.fault == "lost tokens")
                usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": count}
                self._event({"object": "text_completion", "choices": [], "usage": usage})
            if fake.fault != "no end":
                self._raw(b"data: [DONE]\n\n")
            self._raw(b"")

        def _chunk(self, body: dict[str, Any], tokens: list[int], reason: str | None) -> Any:
            ids = None if body.get("detokenize", True) or fake.fault == "text only" else tokens
            choice = {
                "index": 0,
                "text": "",
                "token_ids": ids,
                "logprobs": None,
                "finish_reason": self._reason(reason),
                "stop_reason": None,
                "avg_decoded_tokens_per_iter": None,
            }
            return {
                "id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m",
                "choices": [choice], "usage": None,
            }  # fmt: skip

        def _reason(self, reason: str | None) -> str | None:
            changed = {"timeout": "timeout", "no reason": None}
            return changed.get(fake.fault or "", reason) if reason else None

        def _break(self, body: dict[str, Any]) -> bool:
            """What happens instead of the third event."""
            if fake.fault == "drop":
                self.close_connection = True
                self.connection.close()
                return True
            if fake.fault == "malformed":
                self._raw(b'data: {"choices": [{"token_ids": [1,\n\n')
            elif fake.fault == "error event":
                self._event({"error": {"message": "CUDA out of memory", "code": 500}})
            elif fake.fault in ODD_EVENTS:
                self._event(ODD_EVENTS[fake.fault])
            elif fake.fault == "not an event":
                self._raw(b"Internal Server Error\n\n")
            elif fake.fault == "silence":
                fake.ended.wait(5)
            elif fake.fault == "slow":
                self._until_disconnected(body)
            else:
                return False
            return True

        def _until_disconnected(self, body: dict[str, Any]) -> None:
            try:
                for _ in range(200):
                    self._event(self._chunk(body, [1], None))
                    time.sleep(0.01)
            except OSError:
                fake.disconnected.set()

        def _event(self, data: Any) -> None:
            self._raw(f"data: {json.dumps(data)}\n\n".encode())

        def _raw(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

        def _refuse(self, code: int, message: str) -> None:
            kind = "BadRequestError" if code == 400 else "InternalServerError"
            error = {"object": "error", "message": message, "type": kind, "code": code}
            self._json({**error, "param": None}, code)

        def _json(self, value: Any, code: int = 200) -> None:
            self._send(code, "application/json", json.dumps(value).encode())

        def _send(self, code: int, kind: str, data: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
