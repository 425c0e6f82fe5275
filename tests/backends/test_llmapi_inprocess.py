"""TensorRT-LLM in this process: its own arguments, its own refusals, its own counts."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tests.backends.fake_deployment import FakeDeployment
from tests.backends.fake_tensorrt_llm import make_modules
from tests.backends.llmapi import PROMPT, limits, llm_args, opened
from toolkit.backends.llmapi_inprocess import LlmExecutor, _counts, sampling_words
from toolkit.backends.llmapi_stats import require_speculation
from toolkit.backends.tensorrt.loops import EngineLoop
from toolkit.errors import InputError, MissingDependencyError, RunError
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.request import Request


def drafted(accepted, total):
    return SimpleNamespace(total_accepted_draft_tokens=accepted, total_draft_tokens=total)


def install(monkeypatch, failure=None):
    modules = make_modules(FakeDeployment(), failure=failure)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return modules["tensorrt_llm"]


def load(monkeypatch, args=None, failure=None):
    install(monkeypatch, failure)
    return LlmExecutor(llm_args() if args is None else args, limits())


def test_without_tensorrt_llm_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
    with pytest.raises(MissingDependencyError, match=r"spectool\[tensorrt\]"):
        LlmExecutor(llm_args(), limits())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (llm_args(max_batchsize=4), "max_batchsize\n +Extra inputs are not permitted"),
        (
            llm_args(speculative_config={"decoding_type": "Eagle", "speculative_model": "d"}),
            r"speculative_config\.Eagle\.speculative_model",
        ),
        (
            llm_args(speculative_config={"decoding_type": "Draft_Target"}),
            "does not match any of the expected tags",
        ),
        ({"max_batch_size": 4}, "model"),
    ],
)
def test_arguments_that_the_release_refuses_are_bad_input(monkeypatch, args, said):
    with pytest.raises(InputError, match=said) as caught:
        load(monkeypatch, args)
    assert "TensorRT-LLM 1.2.1 refuses these arguments" in str(caught.value)


def test_a_model_that_does_not_load_is_a_failed_run(monkeypatch):
    with pytest.raises(RunError, match=r"org/target: could not be loaded: CUDA out of memory"):
        load(monkeypatch, failure=RuntimeError("CUDA out of memory\nstack ..."))


def test_a_prompt_that_the_deployment_refuses_says_why():
    with opened("in process", FakeDeployment(), max_num_tokens=2) as executor:
        loop = EngineLoop(executor, path_len=4)
        with pytest.raises(RunError, match="should not exceed max_num_tokens"):
            loop.submit(Request(PROMPT, 9))


def test_a_request_after_the_end_says_so():
    with opened("in process", FakeDeployment()) as executor:
        executor.close()
        with pytest.raises(RunError, match="LLM is shutting down"):
            executor.submit(PROMPT, 3, SamplingParams())


def test_iteration_statistics_add_up():
    with opened("in process", FakeDeployment(), enable_iter_perf_stats=True) as executor:
        EngineLoop(executor, path_len=4).generate([Request(PROMPT, 9)])
        stats = require_speculation(executor.iteration_stats(), executor.where)
        assert executor.iteration_stats().iterations == 0  # gone once read
    # Prefill and three steps; the first drafts nothing.
    assert (stats.iterations, stats.verify_steps) == (4, 3)
    assert (stats.draft_tokens, stats.accepted_tokens) == (12, 5)


def test_without_iteration_statistics_the_switch_is_named():
    with opened("in process", FakeDeployment()) as executor:
        EngineLoop(executor, path_len=4).generate([Request(PROMPT, 9)])
        with pytest.raises(RunError, match="enable_iter_perf_stats: true"):
            require_speculation(executor.iteration_stats(), executor.where)


def test_closing_shuts_the_model_down():
    with opened("in process", FakeDeployment()) as executor:
        (llm,) = executor._api.LLM.loaded
        executor.close()
        assert llm.closed


@pytest.mark.parametrize(
    ("metrics", "counts"),
    [
        (None, None),
        (SimpleNamespace(), None),
        (SimpleNamespace(speculative_decoding=None), None),
        (SimpleNamespace(speculative_decoding=drafted(0, 0)), None),
        (SimpleNamespace(speculative_decoding=drafted(0, 8)), (0, 8)),
        (SimpleNamespace(speculative_decoding=drafted(5, 12)), (5, 12)),
    ],
)
def test_counts_of_a_request_are_taken_where_a_release_tells_them(metrics, counts):
    assert _counts(SimpleNamespace(request_perf_metrics=metrics)) == counts
    assert _counts(SimpleNamespace()) is None


def test_greedy_is_top_k_1():
    words = sampling_words(7, SamplingParams(seed=5), frozenset())
    assert words == {
        "max_tokens": 7,
        "seed": 5,
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "detokenize": False,
        "top_k": 1,
    }


def test_sampling_is_passed_on():
    params = SamplingParams(temperature=0.7, top_k=40, top_p=0.9, seed=1)
    words = sampling_words(7, params, frozenset({9, 2}))
    assert words["stop_token_ids"] == [2, 9]
    assert (words["temperature"], words["top_p"], words["top_k"]) == (0.7, 0.9, 40)
    assert "top_k" not in sampling_words(7, SamplingParams(temperature=1.0), frozenset())
