"""P3: a draft token must mean what the target's token of that number means.

Sizes differ for two reasons: rows that only pad (Qwen's 151936 and 152064 rows hold the same
tokens), which is harmless, and tokens that one side lacks (128000 tokens without Llama 3's 256
special ones), which is not.
"""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.checkpoint.tokenizer import Tokenizer
from toolkit.preflight.facts import Facts
from toolkit.preflight.report import Finding


def check(facts: Facts) -> Iterator[Finding]:
    """Every tokenizer against its model, then every draft's against the target's."""
    for role, tokenizer in facts.tokenizers.items():
        yield from _rows(facts, role, tokenizer)
        if role != "target" and "target" in facts.tokenizers:
            yield from _pair(facts, role, facts.tokenizers["target"], tokenizer)
    yield from _trained_for(facts)


def _rows(facts: Facts, role: str, tokenizer: Tokenizer) -> Iterator[Finding]:
    rows = facts.configs.get(role, {}).get("vocab_size", tokenizer.vocab_size)
    if tokenizer.vocab_size > rows:
        yield Finding(
            f"{role} tokenizer", f"has {tokenizer.vocab_size} tokens, the model only {rows}"
        )


def _pair(facts: Facts, role: str, target: Tokenizer, draft: Tokenizer) -> Iterator[Finding]:
    where = f"{role} tokenizer"
    differences = target.compare(draft)
    for text in differences:
        yield Finding(where, text)
    if differences:
        yield Finding(where, f"take a {role} model of the target's family and generation")
        return
    if target.bos_id != draft.bos_id:
        yield Finding(
            where,
            f"begin of text is {draft.bos_id}, the target's {target.bos_id}; the target's is used",
            "note",
        )
    yield from _templates(where, target, draft)
    yield from _padding(facts, role)


def _templates(where: str, target: Tokenizer, draft: Tokenizer) -> Iterator[Finding]:
    """Acceptance falls when one of the two was never taught to chat."""
    if target.chat_template and not draft.chat_template:
        yield Finding(
            where,
            "has no chat template, the target's has one: a base model that drafts for an instruct "
            "model; prefer the instruct version",
            "note",
        )
    elif target.chat_template and draft.chat_template != target.chat_template:
        yield Finding(where, "its chat template differs; the target's is used", "note")


def _padding(facts: Facts, role: str) -> Iterator[Finding]:
    sizes = {r: facts.configs[r]["vocab_size"] for r in ("target", role) if r in facts.configs}
    if len(set(sizes.values())) > 1:
        tokens = facts.tokenizers["target"].vocab_size
        yield Finding(
            role,
            f"vocab_size {sizes[role]}, the target's {sizes['target']}: both tokenizers have the "
            f"same {tokens} tokens, the other rows only pad",
            "note",
        )


def _trained_for(facts: Facts) -> Iterator[Finding]:
    """A head that says which model it was trained on, beside a target of another name."""
    if facts.heads is None:
        return
    base = facts.heads.config.get("base_model_name_or_path")
    target = facts.models["target"].checkpoint.rstrip("/")
    if not isinstance(base, str) or not base.strip("/"):
        return
    # Names are compared as far as both say one: a local directory may have any.
    if base.rsplit("/", 1)[-1].lower() != target.rsplit("/", 1)[-1].lower():
        yield Finding(
            "heads",
            f"trained for {base}, the target is {target}; with another target few drafts are "
            "accepted",
            "note",
        )
