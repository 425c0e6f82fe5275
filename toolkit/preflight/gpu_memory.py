"""How much memory GPUs have, by the names people use."""

from __future__ import annotations

import re

from toolkit.errors import InputError, did_you_mean

# What the driver reports as total, in MiB: less than the number on the box.
MEMORY_MIB = {
    "T4": 15_360, "A10": 23_028, "A10G": 23_028, "L4": 23_034, "A30": 24_576, "RTX 3090": 24_576,
    "RTX 4090": 24_564, "RTX 5090": 32_607, "A40": 46_068, "L40": 46_068, "L40S": 46_068,
    "A100-40GB": 40_960, "A100-80GB": 81_920, "A100": 81_920, "H100": 81_559, "H800": 81_559,
    "H20": 97_871, "H200": 143_771, "GH200": 97_871, "B200": 183_359, "GB200": 189_471,
}  # fmt: skip


_KNOWN = {name.replace(" ", "-"): size for name, size in MEMORY_MIB.items()}


def memory_mib(gpu: str) -> int:
    """`h100`, `A100 40GB` or `a100-40` in MiB; InputError for a GPU that is not in the table."""
    if is_known(gpu):
        return _KNOWN.get(_words(gpu)) or _KNOWN[f"{_words(gpu)}GB"]
    raise InputError(
        f"unknown GPU {gpu!r}{did_you_mean(_words(gpu), _KNOWN)} (known: {', '.join(MEMORY_MIB)}); "
        "give its memory instead: --gpu-memory GIB"
    )


def is_known(gpu: str) -> bool:
    return _words(gpu) in _KNOWN or f"{_words(gpu)}GB" in _KNOWN


def _words(gpu: str) -> str:
    return re.sub(r"[\s_-]+", "-", gpu.strip().upper())
