"""The tokenizer that a GGUF file describes, against transformers' reading of the same file."""

from __future__ import annotations

import json

import pytest

from tests.tiny_gguf import write_gguf
from toolkit.checkpoint.source import open_source
from toolkit.checkpoint.tokenizer import load_tokenizer, write_tokenizer
from toolkit.errors import CheckpointError

TEXTS = [
    "Hello, world! It's I'll we've can't.",
    "안녕하세요, 반갑습니다. 오늘 날씨가 정말 좋네요! 한글과 English 섞어 쓰기",
    "def f(x):\n    return [y ** 2 for y in x if y != 'a']\n\n\tprint(f\"{x!r}\")  # done",
    "In 2024, 366 days; pi is 3.14159 and 12345678901234567890 is long",
    "   leading\n\n\n  and trailing   \r\n\t\t tabs ",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "🙂👍🏽 日本語 中文 ελληνικά العربية",
    "no\u00a0break\u2003space\u200bzero",
    "",
    " ",
    "\n",
]
# This tokenizer cuts digits out first, so spaces before a digit stand alone; transformers forgets
# that step when it reads a GGUF, and takes the last space for the digit's own.
DIGITS = ["x  =  12", "a\t\t1", "  12  34", "½ ² Ⅷ ٣"]


@pytest.fixture(scope="module")
def reference(smollm2_gguf):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(
        smollm2_gguf.parent, gguf_file=smollm2_gguf.name
    )


@pytest.fixture(scope="module")
def ours(smollm2_gguf, tmp_path_factory):
    out = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(open_source(str(smollm2_gguf)), out)
    return load_tokenizer(out)


@pytest.mark.model
@pytest.mark.parametrize("text", TEXTS)
def test_smollm2_text_has_transformers_ids_and_comes_back(ours, reference, text):
    ids = ours.encode(text)
    assert ids == reference(text).input_ids
    assert ours.decode(ids, skip_special=False) == text


@pytest.mark.model
@pytest.mark.parametrize("text", DIGITS)
def test_smollm2_digits_stand_alone(ours, reference, text):
    from tokenizers import Tokenizer, pre_tokenizers

    corrected = Tokenizer.from_str(reference.backend_tokenizer.to_str())
    corrected.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    ids = ours.encode(text)
    assert ids == corrected.encode(text).ids
    assert ids != reference(text).input_ids
    assert ours.decode(ids) == text


@pytest.mark.model
def test_smollm2_chats_are_rendered_alike(ours, reference):
    messages = [
        {"role": "user", "content": "What is 7 + 5?"},
        {"role": "assistant", "content": "12"},
        {"role": "user", "content": "고마워!"},
    ]
    theirs = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ours.chat(messages) == theirs


@pytest.mark.model
def test_smollm2_special_tokens(ours):
    assert (ours.vocab_size, ours.bos_id, ours.eos_ids) == (49152, 1, {2})
    assert ours.decode(ours.encode("a<|im_end|>")) == "a"


TINY = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["<s>", "</s>", "a", "b", "ab", "1", "Ġ", "ĠĠ", "Ġa", "<x>"],
    "tokenizer.ggml.token_type": [3, 3, 1, 1, 1, 1, 1, 1, 1, 4],
    "tokenizer.ggml.merges": ["a b", "Ġ Ġ", "Ġ a"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.eot_token_id": 9,
}


def tokenizer_of(tmp_path, **changes):
    metadata = {k: v for k, v in {**TINY, **changes}.items() if v is not None}
    write_gguf(tmp_path / "m.gguf", metadata=metadata)
    write_tokenizer(open_source(str(tmp_path / "m.gguf")), tmp_path / "out")
    return load_tokenizer(tmp_path / "out")


def test_merges_digits_and_added_tokens_by_hand(tmp_path):
    tokenizer = tokenizer_of(tmp_path)
    # "ab" merges; both spaces before the digit stay together; <x> is cut out whole, not special
    assert tokenizer.encode("ab  1 a<x>") == [4, 7, 5, 8, 9]
    assert tokenizer.decode([4, 9]) == "ab<x>"
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (0, {1, 9})


def test_the_first_token_is_added_when_the_file_says_so(tmp_path):
    tokenizer = tokenizer_of(tmp_path, **{"tokenizer.ggml.add_bos_token": True})
    assert tokenizer.encode("a") == [0, 2]
    assert tokenizer.encode("a", add_special=False) == [2]


def test_the_chat_template_is_kept(tmp_path):
    template = "{{ messages[0]['content'] }}b"
    tokenizer = tokenizer_of(tmp_path, **{"tokenizer.chat_template": template})
    assert tokenizer.chat([{"role": "user", "content": "a"}]) == [4]
    assert (
        json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["eos_token"] == "</s>"
    )


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        # three digits at a time; the space belongs to the word; a newline ends punctuation
        ("llama-bpe", "a1234 b.\nIT'S", ["a", "123", "4", " b", ".\n", "IT", "'S"]),
        ("qwen2", "a12 b.\nIT'S", ["a", "1", "2", " b", ".\n", "IT", "'S"]),
        ("gpt-2", "a12 b.\nit's", ["a", "12", " b", ".", "\n", "it", "'s"]),
        ("smollm", "a12  3.\nit's", ["a", "1", "2", "  ", "3", ".", "\n", "it", "'s"]),
    ],
)
def test_every_known_way_of_cutting_text(pre, text, pieces):
    from toolkit.checkpoint.gguf_tokenizer import PRE_TOKENIZERS

    found = PRE_TOKENIZERS[pre]().pre_tokenize_str(text)
    assert [text[start:stop] for _, (start, stop) in found] == pieces


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer.ggml.model": "llama"}, "'llama' is not supported"),
        ({"tokenizer.ggml.pre": "tekken"}, "'tekken' is not one of"),
        ({"tokenizer.ggml.tokens": None}, "tokens is missing"),
        ({"tokenizer.ggml.merges": None}, "merges is missing"),
        ({"tokenizer.ggml.merges": ["a z"]}, "cannot be built"),
        ({"tokenizer.ggml.merges": ["ab"]}, "cannot be built"),
        ({"tokenizer.ggml.tokens": ["a", "a", "b"]}, "some occur twice"),
    ],
)
def test_a_tokenizer_that_cannot_be_made_is_refused(tmp_path, changes, said):
    with pytest.raises(CheckpointError, match=said):
        tokenizer_of(tmp_path, **changes)
