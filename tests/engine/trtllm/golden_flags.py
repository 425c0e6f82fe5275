"""The golden parser tables: what trtllm-build of a release accepts, independent of our own."""

import json
from pathlib import Path

GOLDEN = Path(__file__).parents[2] / "golden"
AUTO_PARALLEL = ("auto_parallel", "gpus_per_node", "cluster_key")
RELEASES = ("0.16.0", "0.20.0", "1.0.0", "1.2.1")


def golden_flags(version: str) -> dict[str, dict]:
    """dest -> action, by release; 0.20 and 1.0 are 1.2 plus what it removed (see flags.py)."""
    old = json.loads((GOLDEN / "trtllm_build_flags_0.16.json").read_text())
    new = json.loads((GOLDEN / "trtllm_build_flags_1.2.json").read_text())["flags"]
    old, new = ({row["dest"]: row for row in rows if row["dest"] != "help"} for rows in (old, new))
    if version.startswith("0.16"):
        return old
    if version.startswith("1.2"):
        return new
    return new | {name: old[name] for name in AUTO_PARALLEL}


def parse(argv: list[str], version: str) -> dict[str, object]:
    """What argparse would make of `argv`; ValueError for what it would refuse."""
    table = golden_flags(version)
    by_flag = {flag: row for row in table.values() for flag in row["flags"]}
    found: dict[str, object] = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        if word not in by_flag:
            raise ValueError(f"unrecognized arguments: {word}")
        row = by_flag[word]
        if row["action"] == "_StoreTrueAction":
            found[row["dest"]] = True
            continue
        if not words or words[0].startswith("--"):
            raise ValueError(f"argument {word}: expected one argument")
        found[row["dest"]] = _value(word, words.pop(0), row)
    return found


def _value(flag: str, text: str, row: dict) -> object:
    if row["choices"] and text not in row["choices"]:
        raise ValueError(f"argument {flag}: invalid choice: {text!r}")
    if row["dest"] == "kv_cache_type" and text not in ("continuous", "paged", "disabled"):
        raise ValueError(f"argument {flag}: invalid KVCacheType value: {text!r}")
    return int(text) if row["type"] == "int" else text
