"""A real model from GGUF: SmolLM2-135M-Instruct against transformers' own GGUF loading."""

import numpy as np
import pytest
import torch
import transformers

from toolkit.backends.cpu.backend import CpuBackend
from toolkit.checkpoint.convert import convert
from toolkit.checkpoint.source import open_source
from toolkit.checkpoint.tokenizer import load_tokenizer, write_tokenizer
from toolkit.engine.cpu import build_cpu_engine
from toolkit.recipe.schema import EngineLimits, ModelSpec
from toolkit.speculation.interfaces import Step

pytestmark = pytest.mark.model
LIMITS = EngineLimits(max_batch_size=2, max_input_len=256, max_seq_len=512)
QUESTION = [{"role": "user", "content": "Write two sentences about a lighthouse in winter."}]


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf, tmp_path_factory):
    """(model, tokenizer), float32."""
    root = tmp_path_factory.mktemp("smollm2")
    source = open_source(str(smollm2_gguf))
    spec = ModelSpec(checkpoint=str(smollm2_gguf), dtype="float32")
    convert(source, root / "checkpoint", spec)
    (root / "engine").mkdir()
    build_cpu_engine(root / "checkpoint", root / "engine", LIMITS)
    write_tokenizer(source, root / "tokenizer")
    return CpuBackend().load(root / "engine"), load_tokenizer(root / "tokenizer")


def rms(difference):
    return np.sqrt(np.square(difference, dtype=np.float64).mean())


def test_logits_equal_those_of_transformers(smollm2, smollm2_gguf):
    model, tokenizer = smollm2
    prompt = tokenizer.chat(QUESTION)
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2_gguf.parent, gguf_file=smollm2_gguf.name, dtype=torch.float32
    ).eval()
    ids = torch.tensor([prompt])
    with torch.no_grad():
        theirs = reference(ids).logits[0].numpy()
        exact = reference.double()(ids).logits[0].numpy()
    seq = model.open()
    (output,) = model.forward([Step(seq, np.array(prompt), rows=len(prompt))])
    model.close(seq)
    # Logits reach 38; float32 fixes them to about 1e-4: transformers is 0.9e-4 from float64.
    assert np.abs(output.logits - theirs).max() < 1e-4
    assert np.abs(output.logits - exact).max() < 1.5 * np.abs(theirs - exact).max()
    assert rms(output.logits - exact) < 1.5 * rms(theirs - exact)
    np.testing.assert_array_equal(output.logits.argmax(1), theirs.argmax(1))


def test_it_writes_english(smollm2):
    model, tokenizer = smollm2
    seq, tokens = model.open(), tokenizer.chat(QUESTION)
    new = list(tokens)
    written: list[int] = []
    while len(written) < 40:
        (output,) = model.forward([Step(seq, np.array(new))])
        new = [int(output.logits[0].argmax())]
        if new[0] in tokenizer.eos_ids:
            break
        written += new
    model.close(seq)
    assert "lighthouse" in tokenizer.decode(written)
