"""TensorRT-LLM's PyTorch backend in this process, through `tensorrt_llm.LLM`.

Written against the signatures of 1.0 to 1.3 previews: LLM(model, **llm_args), generate_async,
SamplingParams, RequestOutput as an iterator that changes in place, get_stats, shutdown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from toolkit.backends.llmapi_requests import (
    LlmLimits,
    Piece,
    StreamingExecutor,
    TokenStream,
    first_line,
)
from toolkit.backends.llmapi_stats import IterationStats, iteration_stats
from toolkit.errors import InputError, RunError
from toolkit.optional import require
from toolkit.speculation.interfaces import SamplingParams


class LlmExecutor(StreamingExecutor):
    """A loaded model; requests are batched in flight."""

    def __init__(
        self, llm_args: Mapping[str, Any], limits: LlmLimits, *, timeout_s: float = 600.0
    ) -> None:
        self._api = require("tensorrt_llm", extra="tensorrt", why="backend 'pytorch'")
        name = str(llm_args.get("model", "LLM"))
        super().__init__(f"TensorRT-LLM with {name}", limits, timeout_s=timeout_s)
        try:
            self._llm = self._api.LLM(**llm_args)
        except (TypeError, ValueError) as error:  # pydantic's ValidationError is a ValueError
            raise InputError(
                f"{name}: TensorRT-LLM {self._api.__version__} refuses these arguments\n"
                + "\n".join(f"  {line}" for line in str(error).strip().splitlines())
            ) from None
        except (OSError, RuntimeError) as error:
            raise RunError(f"{name}: could not be loaded: {first_line(error)}") from None

    def open_stream(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams,
        stop_tokens: frozenset[int],
    ) -> TokenStream:
        words = sampling_words(max_tokens, sampling, stop_tokens)
        try:
            params = self._api.SamplingParams(**words, return_perf_metrics=True)
            output = self._llm.generate_async(list(prompt), sampling_params=params, streaming=True)
        except (RuntimeError, ValueError) as error:
            raise RunError(f"{self.where}: {first_line(error)}") from None
        return _OutputStream(output)

    def shutdown(self) -> None:
        self._llm.shutdown()

    def iteration_stats(self, *, wait_s: float = 2.0) -> IterationStats:
        """Of the iterations since the last call; needs enable_iter_perf_stats."""
        return iteration_stats(self._llm.get_stats(timeout=wait_s), self.where)


class _OutputStream(TokenStream):
    def __init__(self, output: Any) -> None:
        self._output = output

    def __iter__(self) -> Iterator[Piece]:
        for output in self._output:
            completion = output.outputs[0]
            iterations = getattr(output, "decoding_iter", None)
            yield Piece(
                tokens=list(completion.token_ids_diff),
                finish=completion.finish_reason,
                iterations=int(iterations) if iterations else None,
                counts=_counts(completion) if completion.finish_reason else None,
            )

    def close(self) -> None:
        if not self._output.finished:
            with suppress(RuntimeError):  # the executor has just finished or shut down
                self._output.abort()


def sampling_words(
    max_tokens: int, sampling: SamplingParams, stop_tokens: frozenset[int]
) -> dict[str, Any]:
    """Keywords that SamplingParams and the body of a completion request share.

    Greedy is top-k 1, which every release and sampler takes as such. A stop token stays in the
    output, and only those of the request stop it.
    """
    words: dict[str, Any] = {
        "max_tokens": max_tokens,
        "seed": sampling.seed,
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "detokenize": False,
    }
    if stop_tokens:
        words["stop_token_ids"] = sorted(stop_tokens)
    if sampling.greedy:
        return words | {"top_k": 1}
    words |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
    return words | ({"top_k": sampling.top_k} if sampling.top_k else {})


def _counts(completion: Any) -> tuple[int, int] | None:
    """(accepted, drafted) of the request; None where the release or a plain run tells none."""
    metrics = getattr(completion, "request_perf_metrics", None)
    found = getattr(metrics, "speculative_decoding", None)
    if found is None or not found.total_draft_tokens:
        return None
    return int(found.total_accepted_draft_tokens), int(found.total_draft_tokens)
