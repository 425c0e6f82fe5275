"""What the cheaper number formats cost, measured against float32 on the same weights."""

import numpy as np
import pytest
import torch
import transformers

from tests.backends.cpu.conftest import build_tiny, tokens, whole
from toolkit.backends.cpu.backend import CpuBackend
from toolkit.checkpoint.read import Checkpoint
from toolkit.engine.graph import DecoderGraph
from toolkit.engine.settings import decoder_settings
from toolkit.engine.weights import Weights, quantize_rows

TEXT = tokens(120)


@pytest.fixture(scope="module")
def exact(loaded):
    return whole(loaded, TEXT)


def test_bfloat16_is_as_close_to_float32_as_torchs(tmp_path, exact):
    engine = build_tiny(tmp_path, dtype="bfloat16")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.bfloat16)
    with torch.no_grad():
        theirs = model.eval()(torch.tensor(TEXT)[None]).logits[0].float().numpy()
    error = np.abs(whole(CpuBackend().load(engine), TEXT) - exact)
    assert 0 < error.mean() < 1.5 * np.abs(theirs - exact).mean()


def test_float16_weights_compute_in_float32(tmp_path):
    """The same rounded weights, kept in 16 bits or widened before the graph is written."""
    half, wide = (
        whole(CpuBackend().load(build_tiny(tmp_path / dtype, dtype=dtype, stored="float16")), TEXT)
        for dtype in ("float16", "float32")
    )
    np.testing.assert_allclose(half, wide, atol=2e-5, rtol=0)


def test_int8_equals_its_dequantised_weights_in_float32(tmp_path, engine_dir, exact, monkeypatch):
    """Weights are rounded, activations are not: so the same weights in float32 must agree."""
    rounded_weights(monkeypatch)
    dequantised = whole(CpuBackend().load(build_tiny(tmp_path / "a")), TEXT)
    monkeypatch.undo()
    found = whole(CpuBackend().load(build_tiny(tmp_path / "b", quantization="w8a16")), TEXT)
    np.testing.assert_allclose(found, dequantised, atol=1e-4, rtol=0)
    # and the rounding itself is felt, but small
    error = np.abs(found - exact)
    assert 0.001 * exact.std() < error.mean() < 0.03 * exact.std()


def rounded_weights(monkeypatch):
    """From here on float32 engines are built of weights that went through int8 and back."""
    original = Weights.summands

    def summands(self, name):
        values, scale = quantize_rows(self._checkpoint.tensor(name))
        return [self._float(values * scale)]

    assert original is not summands
    monkeypatch.setattr(Weights, "summands", summands)


def test_int8_weights_are_stored_in_a_quarter_of_the_bytes(tmp_path):
    sizes = {}
    for quantization in (None, "w8a16"):
        engine = build_tiny(tmp_path / str(quantization), quantization=quantization)
        sizes[quantization] = (engine / "model.bin").stat().st_size
    # Per layer: qkv 128 x 64, dense 64 x 64, fc, gate and proj 128 x 64 each = 36,864 weights and
    # 128 + 64 + 128 + 128 + 64 = 512 scales of 4 bytes.
    saved = 2 * (36_864 * 3 - 512 * 4)
    assert sizes[None] - sizes["w8a16"] == pytest.approx(saved, abs=4096)


def test_positions_far_out_stay_exact_in_bfloat16(engine_dir):
    """The rotation is a table of float32 cosines: bfloat16 could not even count to 257."""
    settings = decoder_settings(Checkpoint(engine_dir.parent / "checkpoint").config, "tiny")
    weights = Weights(Checkpoint(engine_dir.parent / "checkpoint"), int8=False)
    graph = DecoderGraph(settings, weights, max_seq_len=256)
    table = graph.cos.input_value(0).get_node().input_value(0).get_node()
    assert table.get_element_type().get_type_name() == "f32"
    assert table.data.shape == (256, settings.head_size)
    np.testing.assert_allclose(table.data[255, 0], np.cos(255.0), rtol=1e-6)


def test_a_machine_without_bfloat16_computes_in_float32(tmp_path, monkeypatch):
    """Then the rounded weights are all that differs from float32."""
    monkeypatch.setattr("toolkit.backends.cpu.paged._has_bf16", lambda core: False)
    kept = whole(CpuBackend().load(build_tiny(tmp_path / "a", dtype="bfloat16")), TEXT)
    wide = whole(CpuBackend().load(build_tiny(tmp_path / "b", stored="bfloat16")), TEXT)
    np.testing.assert_allclose(kept, wide, atol=2e-5, rtol=0)
