"""The real thing: TensorRT-LLM's PyTorch backend on an NVIDIA GPU, in process and served.

    pytest -m gpu tests/backends/test_llmapi_gpu.py

Without a GPU or without TensorRT-LLM these tests skip and say what is missing.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from importlib.util import find_spec

import numpy as np
import pytest

from tests.tiny import VOCAB, write_checkpoint
from tests.tiny_heads import write_heads
from toolkit.backends.deployments import DeploymentsLoop, connect_deployments
from toolkit.backends.llmapi_endpoint import EndpointExecutor
from toolkit.backends.llmapi_http import Server
from toolkit.backends.llmapi_runtime import limits_of, open_endpoint
from toolkit.backends.llmapi_stats import require_speculation
from toolkit.backends.runtime import open_runtime
from toolkit.checkpoint.tokenizer import load_tokenizer
from toolkit.errors import RunError
from toolkit.execute import build
from toolkit.measure.metrics import acceptance_rate
from toolkit.measure.run import Conditions, EncodedPrompt, measure_group
from toolkit.plan import make_plan
from toolkit.recipe.load import load_recipe
from toolkit.recipe.schema import Sampling
from toolkit.speculation.request import Request
from toolkit.store import Store

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(3600)]

HIDDEN, HEAD, HEADS, KV_HEADS, INTERMEDIATE, DRAFT = 256, 64, 4, 2, 512, 128
SIZES = {"hidden_size": HIDDEN, "head_dim": HEAD, "intermediate_size": INTERMEDIATE}
RECIPE = """\
name: tiny
backend: pytorch
tensorrt_llm: "{release}"
target: {{checkpoint: ./model, dtype: float16}}
speculation: {{drafter: none}}
engine: {{max_batch_size: 4, max_input_len: 64, max_seq_len: 128}}
pytorch: {{kv_cache_fraction: 0.2, greedy_only: true}}
"""
SPECULATION = {
    "ngram": ["speculation.drafter=ngram", "speculation.max_draft_len=4"],
    "draft_target": [
        "speculation.drafter=draft_target",
        "speculation.max_draft_len=3",
        "speculation.draft.checkpoint=./model",
        "speculation.draft.dtype=float16",
    ],
    "eagle3": [
        "speculation.drafter=eagle3",
        "speculation.max_draft_len=3",
        "speculation.heads.checkpoint=./heads",
    ],
}
REQUESTS = [Request((5, 6, 7, 8), 32), Request((9, 10, 11, 9, 10), 32)]


@pytest.fixture(scope="module")
def release():
    if find_spec("tensorrt_llm") is None:
        pytest.skip("tensorrt_llm is not installed; run inside NVIDIA's TensorRT-LLM container")
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no NVIDIA GPU here (no nvidia-smi)")
    import tensorrt_llm

    return tensorrt_llm.__version__


@pytest.fixture(scope="module")
def folder(release, tmp_path_factory):
    """A random Llama and a random EAGLE-3 head, of sizes that the attention kernels have."""
    root = tmp_path_factory.mktemp("gpu")
    write_checkpoint(root / "model", "llama", dtype="float16", **SIZES)
    write_heads(root / "heads", _head(), _head_config())
    (root / "r.yaml").write_text(RECIPE.format(release=release))
    return root


def _head():
    rng = np.random.default_rng(3)
    q, kv = HEADS * HEAD, KV_HEADS * HEAD
    shapes = {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "midlayer.self_attn.q_proj.weight": (q, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": (kv, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": (kv, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": (HIDDEN, q),
        "midlayer.mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        "midlayer.mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
        "midlayer.mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        "midlayer.hidden_norm.weight": (HIDDEN,),
        "midlayer.input_layernorm.weight": (HIDDEN,),
        "midlayer.post_attention_layernorm.weight": (HIDDEN,),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (DRAFT, HIDDEN),
    }
    tensors = {n: (rng.standard_normal(s) * 0.1).astype(np.float16) for n, s in shapes.items()}
    return tensors | {"d2t": np.zeros(DRAFT, np.int64)}


def _head_config():
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **SIZES,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "torch_dtype": "float16",
    }


def built(folder, monkeypatch, overrides=()):
    monkeypatch.chdir(folder)
    store = Store(folder / "store")
    return build(make_plan(load_recipe(str(folder / "r.yaml"), overrides), store), store)


def generate(folder, monkeypatch, overrides=()):
    runtime = open_runtime(built(folder, monkeypatch, overrides))
    try:
        return runtime.loop().generate(REQUESTS)
    finally:
        runtime.close()


@pytest.fixture(scope="module")
def plain(folder):
    with pytest.MonkeyPatch.context() as monkeypatch:
        return generate(folder, monkeypatch)


def test_a_plain_deployment_generates(plain):
    assert [len(output.tokens) for output in plain] == [32, 32]


@pytest.mark.parametrize("drafter", SPECULATION)
def test_speculation_ends_in_the_text_of_plain_decoding(drafter, folder, plain, monkeypatch):
    """float16 may break ties of a random model differently late in a text; not in 8 tokens."""
    outputs = generate(folder, monkeypatch, SPECULATION[drafter])
    for output, reference in zip(outputs, plain, strict=True):
        assert output.tokens[:8] == reference.tokens[:8]
        assert output.stats.verify_steps > 0


def test_a_model_that_drafts_for_itself_is_always_right(folder, plain, monkeypatch):
    outputs = generate(folder, monkeypatch, SPECULATION["draft_target"])
    assert all(output.stats.acceptance_rate > 0.9 for output in outputs)


@contextmanager
def served(deployment):
    """serve.sh of a deployment on a free port, until its /health answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    environment = {**os.environ, "HOST": "127.0.0.1", "PORT": str(port)}
    with subprocess.Popen([deployment / "serve.sh"], env=environment) as process:
        try:
            deadline = time.monotonic() + 600
            while not _healthy(url):
                assert process.poll() is None, "trtllm-serve ended"
                assert time.monotonic() < deadline, "trtllm-serve did not come up"
                time.sleep(2)
            yield url
        finally:
            process.terminate()


def _healthy(url):
    try:
        Server(url, timeout_s=5).text("/health")
    except RunError:
        return False
    return True


def test_a_served_deployment_is_measured_by_all_its_endpoints(folder, plain, monkeypatch):
    models = built(folder, monkeypatch, SPECULATION["draft_target"])
    tokenizer = load_tokenizer(models.tokenizer_dir)
    prompts = [EncodedPrompt(f"p{i}", "code", r.prompt) for i, r in enumerate(REQUESTS)]
    conditions = Conditions(max_tokens=16, sampling=Sampling(), stop_tokens=frozenset())
    with served(models.engines["target"]) as url:
        runtime = open_endpoint(models.recipe, url, tokenizer)
        run = measure_group(runtime.loop(), prompts, k=3, round="r0", conditions=conditions)
        executor = EndpointExecutor(url, limits_of(models.recipe, tokenizer))
        stats = require_speculation(executor.iteration_stats(), url)
        counts = executor.prometheus()
    assert all(record.output_tokens >= 16 for record in run.requests)
    assert stats.draft_tokens >= stats.accepted_tokens > 0
    assert counts.finished_requests is not None
    json.dumps(run.to_json())


def test_deployments_of_two_draft_lengths_are_measured_in_turns(folder, monkeypatch):
    """Both on one GPU: each takes a fifth of its memory."""
    plain = built(folder, monkeypatch)
    drafting = built(folder, monkeypatch, SPECULATION["draft_target"])
    prompts = [EncodedPrompt(f"p{i}", "code", r.prompt) for i, r in enumerate(REQUESTS)]
    shared = Conditions(max_tokens=16, sampling=Sampling(), stop_tokens=frozenset())
    with served(plain.engines["target"]) as zero, served(drafting.engines["target"]) as three:
        loop = DeploymentsLoop(connect_deployments(drafting, {0: zero, 3: three}).loops)
        runs = {k: measure_group(loop, prompts, k=k, round="r", conditions=shared) for k in (0, 3)}
    assert all(record.draft_tokens == 0 for record in runs[0].requests)
    assert acceptance_rate(runs[3].requests) > 0.9
