import numpy as np
import pytest

from toolkit.errors import InputError
from toolkit.measure.prompts import BUNDLED, load_prompt_sets
from toolkit.measure.random_prompts import refuse_random, unevenness


def test_evenness_by_hand():
    assert unevenness(range(160), 160) == 0.0  # ten in each of 16 parts
    assert unevenness([0] * 10, 160) == 15 / 16  # one part has all: (15/16 + 15 x 1/16) / 2
    assert unevenness([159, 0], 160) == 14 / 16


@pytest.mark.parametrize("count", [64, 256, 2048])
def test_random_tokens_are_refused_with_the_reason(count):
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 49152, 32).tolist() for _ in range(count // 32)]
    with pytest.raises(InputError, match="random tokens say nothing about acceptance: 1 domain"):
        refuse_random({"synthetic": prompts, "text": [list(range(100))]}, 49152)


def test_a_few_tokens_are_no_evidence():
    refuse_random({"short": [[5, 40_000, 20_000]]}, 49152)


@pytest.fixture(scope="module")
def smollm2_tokenizer(smollm2_gguf, tmp_path_factory):
    from toolkit.checkpoint.source import open_source
    from toolkit.checkpoint.tokenizer import load_tokenizer, write_tokenizer

    out = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(open_source(str(smollm2_gguf)), out)
    return load_tokenizer(out)


@pytest.mark.model
def test_a_real_tokenizer_tells_text_from_noise(smollm2_tokenizer):
    size = smollm2_tokenizer.vocab_size
    sets = load_prompt_sets({name: name for name in BUNDLED})
    text = {s.domain: [smollm2_tokenizer.encode(p.text) for p in s.prompts] for s in sets}
    refuse_random(text, size)
    rng = np.random.default_rng(1)
    for _ in range(20):
        noise = smollm2_tokenizer.decode(rng.integers(0, size, 128).tolist())
        with pytest.raises(InputError):
            refuse_random({"noise": [smollm2_tokenizer.encode(noise)]}, size)
