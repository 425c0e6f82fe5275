"""Tokenizers small enough to work out every mask by hand."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.speculation.llguidance_grammar import LlGuidance

LETTERS = ("a", "b", "ab")  # ids 0, 1, 2
END, OTHER_END, SPECIAL = 3, 4, 5


def guidance(
    tokens: Sequence[str] = LETTERS, ends: Sequence[str] = ("<end>", "<end2>")
) -> LlGuidance:
    """Byte-level BPE over `tokens`; behind them the end tokens and one more special token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocab = {token: index for index, token in enumerate(tokens)}
    merges = [
        (token[:cut], token[cut:])
        for token in tokens
        for cut in range(1, len(token))
        if token[:cut] in vocab and token[cut:] in vocab
    ]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in (*ends, "<special>")]
    )
    end_tokens = frozenset(range(len(tokens), len(tokens) + len(ends)))
    return LlGuidance(tokenizer.to_str(), tokenizer.get_vocab_size(), end_tokens)
