"""What the tests of both ways to the LLM API share: limits, a recipe, ways to open them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.backends.fake_deployment import FakeDeployment
from tests.backends.fake_tensorrt_llm import make_modules
from tests.backends.fake_trtllm_serve import FakeTrtllmServe
from toolkit.backends.llmapi_endpoint import EndpointExecutor
from toolkit.backends.llmapi_inprocess import LlmExecutor
from toolkit.backends.llmapi_requests import LlmLimits, StreamingExecutor

PROMPT = (3, 4, 5)  # sum 12: the answer is 12, 19, 26, 33, 40, 47, 54, 61, 68, ...
ANSWER = [12, 19, 26, 33, 40, 47, 54, 61, 68]
WAYS = ("in process", "over HTTP")


def limits(k: int = 4) -> LlmLimits:
    return LlmLimits(path_len=k, vocab_size=101, max_seq_len=256, max_batch_size=4)


def llm_args(k: int = 4, **changes: Any) -> dict[str, Any]:
    args: dict[str, Any] = {"model": "org/target", "max_batch_size": 4, "stream_interval": 1}
    if k:
        args["speculative_config"] = {
            "decoding_type": "Eagle",
            "max_draft_len": k,
            "speculative_model_dir": "draft",
        }
    return args | changes


@contextmanager
def opened(
    way: str,
    deployment: FakeDeployment,
    *,
    k: int = 4,
    timeout_s: float = 20.0,
    **options: Any,
) -> Iterator[StreamingExecutor]:
    """The deployment as an executor, one way or the other."""
    with ExitStack() as stack:
        if way == "over HTTP":
            server = stack.enter_context(FakeTrtllmServe(deployment, **options))
            executor: StreamingExecutor = EndpointExecutor(
                server.url, limits(k), timeout_s=timeout_s
            )
        else:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            for name, module in make_modules(deployment).items():
                patch.setitem(sys.modules, name, module)
            executor = LlmExecutor(llm_args(k, **options), limits(k), timeout_s=timeout_s)
        stack.callback(executor.close)
        yield executor
