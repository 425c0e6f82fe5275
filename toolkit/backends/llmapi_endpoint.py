"""A running trtllm-serve as an executor: /v1/completions with token ids, streamed.

POST /v1/completions {"stream": true, "detokenize": false, ...}
data: {"choices": [{"token_ids": [..], "finish_reason": null, ..}], ..}   one verify step
data: {"choices": [], "usage": {"completion_tokens": N, ..}}
data: [DONE]
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from toolkit.backends.llmapi_http import Exchange, Server, said
from toolkit.backends.llmapi_inprocess import sampling_words
from toolkit.backends.llmapi_requests import LlmLimits, Piece, StreamingExecutor, TokenStream
from toolkit.backends.llmapi_stats import (
    IterationStats,
    PrometheusCounts,
    RequestMetrics,
    iteration_stats,
    prometheus_counts,
    request_metrics,
)
from toolkit.errors import RunError
from toolkit.speculation.interfaces import SamplingParams

COMPLETIONS = "/v1/completions"
_NO_STATS = "deploy with enable_iter_perf_stats: true"
_NO_REQUESTS = "deploy with return_perf_metrics: true and perf_metrics_max_requests above 0"
_NO_PROMETHEUS = "deploy with return_perf_metrics: true, which mounts it"


class EndpointExecutor(StreamingExecutor):
    """One model that somebody else serves."""

    def __init__(self, url: str, limits: LlmLimits, *, timeout_s: float = 600.0) -> None:
        self.server = Server(url, timeout_s=timeout_s)
        super().__init__(self.server.url, limits, timeout_s=timeout_s)
        self.model = self._only_model()

    def open_stream(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams,
        stop_tokens: frozenset[int],
    ) -> TokenStream:
        words = sampling_words(max_tokens, sampling, stop_tokens)
        body = {
            "model": self.model,
            "prompt": list(prompt),
            "stream": True,
            "stream_options": {"include_usage": True},
            **words,
        }
        return CompletionStream(self.server, body)

    def shutdown(self) -> None:
        """The server belongs to somebody else."""

    def iteration_stats(self) -> IterationStats:
        """Of the iterations since anybody last asked."""
        path = "/metrics"
        return iteration_stats(self._list(path, _NO_STATS), f"{self.where}{path}")

    def request_metrics(self) -> list[RequestMetrics]:
        """Of the requests that ended since anybody last asked; later releases write files."""
        path = "/perf_metrics"
        return request_metrics(self._list(path, _NO_REQUESTS), f"{self.where}{path}")

    def prometheus(self) -> PrometheusCounts:
        path = "/prometheus/metrics"
        text = self.server.text(path, hint=_NO_PROMETHEUS)
        return prometheus_counts(text, f"{self.where}{path}")

    def _list(self, path: str, hint: str) -> list[Any]:
        found = self.server.json(path, hint=hint)
        if not isinstance(found, list):
            raise RunError(
                f"{self.where}{path}: expected a list, found {type(found).__name__}; {hint}"
            )
        return found

    def _only_model(self) -> str:
        found = self.server.json("/v1/models")
        entries = found.get("data") if isinstance(found, dict) else None
        if not isinstance(entries, list) or not entries or not isinstance(entries[0], dict):
            raise RunError(f"{self.where}/v1/models: expected a list of models under 'data'")
        name = entries[0].get("id")
        if not isinstance(name, str):
            raise RunError(f"{self.where}/v1/models: the first model has no id")
        return name


class CompletionStream(TokenStream):
    """The events of one completion; it is sent when the first one is asked for."""

    def __init__(self, server: Server, body: Mapping[str, Any]) -> None:
        self._server, self._body = server, body
        self._exchange: Exchange | None = None
        self._closed = False

    def __iter__(self) -> Iterator[Piece]:
        self._exchange = Exchange(self._server, "POST", COMPLETIONS, self._body)
        if self._closed:  # while the request went out
            self._exchange.close()
        with self._exchange as exchange:
            yield from _pieces(exchange)

    def close(self) -> None:
        self._closed = True
        if self._exchange is not None:
            self._exchange.close()


def _pieces(exchange: Exchange) -> Iterator[Piece]:
    """Token pieces; the last one comes once the end was seen and its count agrees."""
    total, last, usage = 0, None, None
    for event in _events(exchange):
        if event == "[DONE]":
            break
        data = _parsed(event, exchange.where)
        usage = data.get("usage") or usage
        for choice in _choices(data, exchange.where):
            piece = _piece(choice, exchange.where)
            total += len(piece.tokens)
            if piece.finish:
                last = piece
            elif piece.tokens:
                yield piece
    else:
        raise RunError(f"{exchange.where}: the stream ended before [DONE] after {total} token(s)")
    if last is None:
        raise RunError(f"{exchange.where}: [DONE] without a finish_reason after {total} token(s)")
    said_total = usage.get("completion_tokens") if isinstance(usage, dict) else None
    if said_total is not None and said_total != total:
        raise RunError(
            f"{exchange.where}: {total} token(s) came, the server counts {said_total}; tokens "
            "were lost on the way"
        )
    yield last


def _events(exchange: Exchange) -> Iterator[str]:
    for line in exchange.lines():
        if line.startswith("data:"):
            yield line[5:].strip()
        elif line and not line.startswith((":", "event:", "id:", "retry:")):
            raise RunError(f"{exchange.where}: not a server-sent event: {line[:200]!r}")


def _parsed(event: str, where: str) -> dict[str, Any]:
    try:
        data = json.loads(event)
    except ValueError:
        raise RunError(f"{where}: an event is not JSON: {event[:200]!r}") from None
    if not isinstance(data, dict):
        raise RunError(f"{where}: an event is no object: {event[:200]!r}")
    if data.get("object") == "error" or "error" in data:
        raise RunError(f"{where}: the server failed: {said(event)}")
    return data


def _choices(data: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    choices = data.get("choices")
    if not isinstance(choices, list) or not all(isinstance(c, dict) for c in choices):
        raise RunError(f"{where}: an event has no choices: {str(data)[:200]}")
    return choices


def _piece(choice: Mapping[str, Any], where: str) -> Piece:
    tokens = choice.get("token_ids")
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise RunError(
            f"{where}: a choice has token_ids {tokens!r}, although detokenize is false; is this "
            "trtllm-serve 1.0 or newer?"
        )
    return Piece(tokens=tokens, finish=choice.get("finish_reason"))
