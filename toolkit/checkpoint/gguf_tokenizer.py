"""tokenizer.json made from a GGUF file's metadata (byte-level BPE, the `gpt2` tokenizer model)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

_CONTROL, _USER_DEFINED = 3, 4  # token types: special; a plain string that is never split
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")


def _gpt2() -> PreTokenizer:
    from tokenizers import pre_tokenizers

    found: PreTokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return found


def _smollm() -> PreTokenizer:
    from tokenizers import pre_tokenizers

    digits = pre_tokenizers.Digits(individual_digits=True)
    found: PreTokenizer = pre_tokenizers.Sequence([digits, _gpt2()])
    return found


def _words(pattern: str) -> Callable[[], PreTokenizer]:
    def make() -> PreTokenizer:
        from tokenizers import Regex, pre_tokenizers

        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        raw = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        found: PreTokenizer = pre_tokenizers.Sequence([split, raw])
        return found

    return make


# tokenizer.ggml.pre -> how text is cut before merging
PRE_TOKENIZERS: dict[str, Callable[[], PreTokenizer]] = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": _words(_LLAMA3_WORDS),
    "qwen2": _words(_QWEN2_WORDS),
}
# Normalised before cutting, as the original tokenizers of these models do.
_NFC = ("qwen2",)
_WHOLE_WORDS_FIRST = ("llama-bpe",)  # a word that is a token is not built from merges


def tokenizer_from_gguf(metadata: Mapping[str, Any], out: Path, name: str) -> None:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json."""
    tokens = _checked(metadata, name)
    try:
        tokenizer = _tokenizer(metadata, tokens)
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception for bad merges
        raise CheckpointError(name, [f"its tokenizer cannot be built: {error}"]) from None
    tokenizer.save(str(out / "tokenizer.json"))
    special = {
        key: metadata.get(f"tokenizer.ggml.{short}_token_id")
        for key, short in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items()
    }
    config: dict[str, Any] = {
        f"{key}_token": tokens[index]
        for key, index in special.items()
        if isinstance(index, int) and index < len(tokens)
    }
    if isinstance(metadata.get("tokenizer.chat_template"), str):
        config["chat_template"] = metadata["tokenizer.chat_template"]
    ends = sorted(
        {
            index
            for key in ("eos", "eot", "eom")
            if isinstance(index := metadata.get(f"tokenizer.ggml.{key}_token_id"), int)
        }
    )
    generation = {"bos_token_id": special["bos"], "eos_token_id": ends}
    for file, content in {
        "tokenizer_config.json": config,
        "generation_config.json": generation,
    }.items():
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (out / file).write_text(text, encoding="utf-8")


def _checked(metadata: Mapping[str, Any], name: str) -> list[str]:
    problems = []
    model, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "default")
    if model != "gpt2":
        problems.append(f"tokenizer.ggml.model {model!r} is not supported, only 'gpt2' is")
    if pre not in PRE_TOKENIZERS:
        problems.append(f"tokenizer.ggml.pre {pre!r} is not one of {', '.join(PRE_TOKENIZERS)}")
    for key in ("tokens", "merges"):
        value = metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            problems.append(f"tokenizer.ggml.{key} is missing or not a list of strings")
    if problems:
        raise CheckpointError(name, problems)
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    if len(set(tokens)) < len(tokens):
        raise CheckpointError(name, ["tokenizer.ggml.tokens: some occur twice"])
    return tokens


def _tokenizer(metadata: Mapping[str, Any], tokens: list[str]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

    pre = metadata.get("tokenizer.ggml.pre", "default")
    kinds = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    merges = [tuple(pair.split(" ", 1)) for pair in metadata["tokenizer.ggml.merges"]]
    model = models.BPE(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=merges,
        ignore_merges=pre in _WHOLE_WORDS_FIRST,
    )
    tokenizer = Tokenizer(model)
    if pre in _NFC:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    added = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=False)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_tokens(added)
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    add_bos = metadata.get("tokenizer.ggml.add_bos_token") is True
    if add_bos and isinstance(bos, int) and bos < len(tokens):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[tokens[bos], "$A"],
            pair=[tokens[bos], "$A", "$B"],
            special_tokens=[(tokens[bos], bos)],
        )
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer
