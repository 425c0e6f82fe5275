"""GPUs by the names people use, and their architectures: what an engine is built for."""

from __future__ import annotations

import re

# Compute capability x 10, as in sm_90.
ARCHITECTURES = {
    "V100": 70, "T4": 75, "A100": 80, "A800": 80, "A30": 80, "A10": 86, "A10G": 86, "A40": 86,
    "RTX 3090": 86, "L4": 89, "L20": 89, "L40": 89, "L40S": 89, "RTX 4090": 89, "H100": 90,
    "H200": 90, "H800": 90, "H20": 90, "GH200": 90, "B200": 100, "GB200": 100, "B300": 103,
    "GB300": 103, "RTX 5090": 120, "RTX PRO 6000": 120,
}  # fmt: skip


def architecture(name: str) -> int | None:
    """`H100`, `h100`, `sm_90`, `9.0` as 90; None for a GPU that is not in the table."""
    text = name.strip().upper()
    if found := re.fullmatch(r"SM_?(\d{2,3})A?|(\d{1,2})\.(\d)", text):
        return int(found[1] or found[2] + found[3])
    return ARCHITECTURES.get(text)


def shown(sm: int) -> str:
    return f"sm_{sm}"
