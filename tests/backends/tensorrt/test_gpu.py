"""The real thing: trtllm-build and the executor on an NVIDIA GPU.

    pytest -m gpu tests/backends/tensorrt

Without a GPU or without TensorRT-LLM these tests skip and say what is missing.
"""

import pytest

from tests.tiny import write_checkpoint
from toolkit.backends.runtime import open_runtime
from toolkit.engine.trtllm.machine import find_machine
from toolkit.errors import SpectoolError
from toolkit.execute import build
from toolkit.measure.trace_rounds import expected_rounds
from toolkit.plan import make_plan
from toolkit.recipe.load import load_recipe
from toolkit.speculation.draft_length import Fixed
from toolkit.speculation.request import Request
from toolkit.speculation.trace import TracedText
from toolkit.store import Store

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(3600)]

RECIPE = """\
name: tiny
backend: tensorrt
tensorrt_llm: {release}
target: {{checkpoint: ./model, dtype: float16}}
speculation: {{drafter: none}}
engine: {{max_batch_size: 4, max_input_len: 64, max_seq_len: 128}}
tensorrt: {{kv_cache_fraction: 0.2}}
"""
SPECULATION = {
    "draft_target": [
        "speculation.drafter=draft_target",
        "speculation.max_draft_len=4",
        "speculation.draft.checkpoint=./model",
        "speculation.draft.dtype=float16",
    ],
    "ngram": ["speculation.drafter=ngram", "speculation.max_draft_len=4"],
    "lookahead": [
        "speculation.drafter=lookahead",
        "speculation.max_window_size=4",
        "speculation.max_ngram_size=3",
        "speculation.max_verification_set_size=4",
    ],
}
REQUESTS = [Request((5, 6, 7, 8), 32), Request((9, 10, 11, 9, 10), 32)]


@pytest.fixture(scope="module")
def machine():
    try:
        return find_machine()
    except SpectoolError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def folder(machine, tmp_path_factory):
    """A random Llama whose head size the attention kernels have."""
    root = tmp_path_factory.mktemp("gpu")
    sizes = {"hidden_size": 256, "head_dim": 64, "intermediate_size": 512}
    write_checkpoint(root / "model", "llama", dtype="float16", **sizes)
    (root / "r.yaml").write_text(RECIPE.format(release=machine.tensorrt_llm))
    return root


def generate(folder, monkeypatch, overrides=()):
    monkeypatch.chdir(folder)
    store = Store(folder / "store")
    recipe = load_recipe(str(folder / "r.yaml"), overrides)
    runtime = open_runtime(build(make_plan(recipe, store), store))
    try:
        return runtime.loop().generate(REQUESTS)
    finally:
        runtime.close()


@pytest.fixture(scope="module")
def plain(folder):
    with pytest.MonkeyPatch.context() as monkeypatch:
        return generate(folder, monkeypatch)


def test_a_plain_engine_generates(plain):
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


@pytest.mark.parametrize("drafter", ["draft_target", "ngram"])
def test_a_trace_foretells_what_the_engines_accept(drafter, folder, monkeypatch):
    """Within a few per cent: float16 may break a tie otherwise when it reads more at once."""
    monkeypatch.chdir(folder)
    store = Store(folder / "store")
    recipe = load_recipe(str(folder / "r.yaml"), SPECULATION[drafter])
    runtime = open_runtime(build(make_plan(recipe, store), store))
    try:
        for request in REQUESTS:
            [output] = runtime.loop(draft_len=1).generate([request])
            text = TracedText(request.prompt, tuple(output.tokens), request.sampling)
            trace = runtime.tracer().trace(text, 4)
            [measured] = runtime.loop(draft_len=4).generate([request])
            expected = expected_rounds(trace, Fixed(4), wanted=31)
            assert measured.stats.acceptance_length == pytest.approx(
                expected.acceptance_length, rel=0.1
            )
    finally:
        runtime.close()
