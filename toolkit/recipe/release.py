"""Which TensorRT-LLM release a recipe is for, as numbers that compare."""

from __future__ import annotations

import re

Release = tuple[int, int]
Version = tuple[int, int, int, int]  # major, minor, patch, preview
FINAL = 1000  # the preview number of a release proper: after every preview of it


def release(text: str) -> Release | None:
    """`1.2.1`, `0.16.0.dev2024121000` or `1.2` as (1, 2), (0, 16), (1, 2); None for anything else.

    Rules and spellings change with the second number; patches and previews keep them.
    """
    found = re.fullmatch(r"v?(\d{1,3})\.(\d{1,3})(?:[.\-+]?[0-9A-Za-z.\-+]*)?", text.strip())
    return (int(found[1]), int(found[2])) if found else None


def version(text: str) -> Version | None:
    """`1.3.0rc27` as (1, 3, 0, 27) and `1.2.1` as (1, 2, 1, FINAL); None for anything else.

    The PyTorch backend changes within the previews of one release; `.dev` counts as preview 0.
    """
    number = r"v?(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?"
    found = re.fullmatch(number + r"(?:[.\-]?(rc|a|b|dev)(\d*)|\.post\d+)?(?:\+\S*)?", text.strip())
    if not found:
        return None
    preview = FINAL if not found[4] else int(found[5] or 0) if found[4] == "rc" else 0
    return int(found[1]), int(found[2]), int(found[3] or 0), preview
