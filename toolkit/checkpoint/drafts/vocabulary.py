"""The two maps between a reduced vocabulary and the target's: an EAGLE-3 head's, or a draft's.

d2t [D]  target id = draft id + d2t[draft id]
t2d [V]  true for the D target ids that the head can draft; TensorRT-LLM does not read it

A draft model has d2t where its lm_head has fewer rows than its embedding (`lm_head_rows` in its
config.json): it reads all of the target's tokens and says D of them.
"""

from __future__ import annotations

import numpy as np

from toolkit.checkpoint.interfaces import Source

_INTEGERS = ("int64", "int32")


def vocabulary_problems(heads: Source, draft: int, vocab: int) -> list[str]:
    """What is wrong with the maps; lm_head decides `draft`, the target `vocab`."""
    problems = []
    lm_head, d2t = heads.tensors.get("lm_head.weight"), heads.tensors.get("d2t")
    if lm_head is None and draft != vocab:
        problems.append(
            f"lm_head.weight: missing, but draft_vocab_size {draft} differs from the target's "
            f"{vocab}, so its lm_head cannot be used instead; export the head again"
        )
    if draft > vocab:
        problems.append(f"draft_vocab_size {draft} is above the target's vocab_size {vocab}")
    if d2t is None:
        if draft != vocab:
            problems.append(
                f"d2t: missing, but draft_vocab_size {draft} differs from the target's {vocab}: "
                "draft ids would be taken for target ids"
            )
    elif d2t.shape != (draft,):
        problems.append(
            f"d2t: has shape {list(d2t.shape)}, expected [{draft}]: one entry for each draft token"
        )
    elif d2t.dtype not in _INTEGERS:
        problems.append(f"d2t: has dtype {d2t.dtype}, expected one of {', '.join(_INTEGERS)}")
    else:
        problems += _wrong_ids(heads, draft, vocab)
    return problems


def _wrong_ids(heads: Source, draft: int, vocab: int) -> list[str]:
    offsets = np.asarray(heads.read("d2t"), dtype=np.int64)
    ids = np.arange(draft) + offsets
    outside = np.flatnonzero((ids < 0) | (ids >= vocab))
    problems = []
    if outside.size:
        first = int(outside[0])
        problems.append(
            f"d2t: maps {outside.size} draft id(s) outside the target's {vocab} tokens, first "
            f"{first} to {int(ids[first])}; the head is for another vocabulary"
        )
    if repeated := draft - np.unique(ids).size:
        problems.append(f"d2t: maps {repeated} draft id(s) to a token that another one has")
    if draft == vocab and offsets.any():
        problems.append(
            "d2t: reorders a vocabulary that is as large as the target's; TensorRT-LLM ignores it "
            "there"
        )
    return problems + ([] if problems else _wrong_mask(heads, ids, vocab))


def _wrong_mask(
    heads: Source, ids: np.ndarray[tuple[int], np.dtype[np.int64]], vocab: int
) -> list[str]:
    info = heads.tensors.get("t2d")
    if info is None:
        return []
    if info.shape != (vocab,):
        return [f"t2d: has shape {list(info.shape)}, expected [{vocab}]"]
    mask = np.asarray(heads.read("t2d")).astype(bool)
    if int(mask.sum()) != ids.size:
        return [f"t2d: marks {int(mask.sum())} tokens, the draft vocabulary has {ids.size}"]
    if not mask[ids].all():
        wrong = int((~mask[ids]).sum())
        return [f"t2d: does not mark {wrong} of the tokens that d2t maps to"]
    return []
