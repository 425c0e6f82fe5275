"""Which TensorRT-LLM release a recipe is for, as numbers that compare."""

from __future__ import annotations

import re

Release = tuple[int, int]


def release(text: str) -> Release | None:
    """`1.2.1`, `0.16.0.dev2024121000` or `1.2` as (1, 2), (0, 16), (1, 2); None for anything else.

    Rules and spellings change with the second number; patches and previews keep them.
    """
    found = re.fullmatch(r"v?(\d{1,3})\.(\d{1,3})(?:[.\-+]?[0-9A-Za-z.\-+]*)?", text.strip())
    return (int(found[1]), int(found[2])) if found else None
