"""Conversion and graph proved together: logits equal transformers' on the original weights."""

import numpy as np
import pytest
import torch
import transformers

from toolkit.backends.cpu.backend import CpuBackend
from toolkit.engine.cpu import build_cpu_engine
from toolkit.recipe.schema import EngineLimits
from toolkit.speculation.interfaces import Step

TOKENS = np.random.default_rng(0).integers(0, 250, 150)


def reference(directory, tokens=TOKENS):
    """transformers' logits [T, V] and final hidden states [T, H], float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        out = model.eval()(torch.tensor(tokens)[None], output_hidden_states=True)
    return out.logits[0].numpy(), out.hidden_states[-1][0].numpy()


def ours(engine, tokens=TOKENS):
    model = CpuBackend().load(engine)
    (output,) = model.forward([Step(model.open(), tokens, rows=len(tokens), hidden=True)])
    return output.logits, output.hidden


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma"])
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2)])
def test_every_family_has_the_logits_of_transformers(build, family, tp, pp):
    built = build(family, tp=tp, pp=pp)
    logits, hidden = reference(built.source)
    found_logits, found_hidden = ours(built.engine)
    assert found_logits.shape == (150, 250)  # padding of the vocabulary never shows
    np.testing.assert_allclose(found_logits, logits, atol=1e-4, rtol=0)
    np.testing.assert_allclose(found_hidden, hidden, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("family", "tp", "config"),
    [
        ("llama", 1, "llama3 rope"),
        ("llama", 1, "linear rope"),
        ("llama", 4, "tied"),  # 250 rows of vocabulary padded to 252
        ("llama", 2, "one kv head"),  # the head is on both ranks
        ("llama", 2, "biases"),
        ("mistral", 1, "sliding window"),  # as wide as the engine's longest sequence
        ("qwen3", 1, "wide heads"),
        ("gemma", 2, "wide heads"),
    ],
)
def test_variants_have_the_logits_of_transformers(build, family, tp, config):
    built = build(family, tp=tp, config=config)
    logits, _ = reference(built.source)
    np.testing.assert_allclose(ours(built.engine)[0], logits, atol=1e-4, rtol=0)


def test_captured_states_are_those_that_enter_the_next_layers(build, tmp_path):
    built = build("llama")
    model = transformers.AutoModelForCausalLM.from_pretrained(built.source, dtype=torch.float32)
    with torch.no_grad():
        out = model.eval()(torch.tensor(TOKENS)[None], output_hidden_states=True)
    limits = EngineLimits(max_batch_size=4, max_input_len=200, max_seq_len=256)
    build_cpu_engine(built.checkpoint, tmp_path, limits, lambda layers: (0, layers - 2, layers))
    _, found = ours(tmp_path)
    layers = len(out.hidden_states) - 1
    wanted = [out.hidden_states[i][0].numpy() for i in (1, layers - 1, layers)]
    np.testing.assert_allclose(found, np.concatenate(wanted, axis=1), atol=1e-4, rtol=0)


def test_tied_embeddings_are_stored_once(build):
    # [250, 64] float32 = 64,000 bytes less.
    tied, plain = build(config="tied"), build()
    sizes = [(built.engine / "model.bin").stat().st_size for built in (tied, plain)]
    assert sizes[1] - sizes[0] == pytest.approx(64_000, abs=64)
