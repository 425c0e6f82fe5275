"""Ranking five drafts against measuring two grid points: python bench/select_drafts.py

`spectool select` compares layer subsets, int8 and lookup beside the recipe's own draft;
`spectool tune` measures plain decoding and one draft length at two batch sizes on the same prompts.
Both start from built engines, one after the other. The last line of --json is one document.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

DRAFTS = ("target@layers=0,1,2,3,28,29", "target@layers=0,29", "draft@w8a16", "ngram")
POINTS = 2


def main() -> int:
    options = _options()
    prompts = ["--prompts-per-domain", options.prompts_per_domain]
    sizes = ["--batch", options.batch, "--max-tokens", options.max_tokens, *prompts]
    drafts = [word for draft in options.draft or DRAFTS for word in ("--draft", draft)]
    seed = ["--seed", str(time.time_ns() % 2**31)]
    with tempfile.TemporaryDirectory(prefix="bench-select-") as area:
        few = ["--batch", "1", "--max-tokens", "4", "--prompts-per-domain", "2", "--k", "1"]
        _spectool("select", options, *drafts, *few)  # builds every engine
        found, took = _timed("select", options, *drafts, *sizes, "--k", options.k, *seed, "--json")
        grid = ["--k", options.k.rpartition(".")[2], "--out", area, "--json", *seed]
        _, grid_took = _timed("tune", options, *sizes, *grid)
    result = {
        "select_s": took,
        "grid_points_s": grid_took,
        "order": [each["name"] for each in found["candidates"]],
        "mean_speedup": [each["mean_speedup"] for each in found["candidates"]],
    }
    print(json.dumps(result) if options.json else table(result))
    return 0


def table(result: dict[str, Any]) -> str:
    lines = [
        f"select over {len(result['order'])} candidates {result['select_s']:.1f} s; "
        f"{POINTS} grid points {result['grid_points_s']:.1f} s"
    ]
    lines += [f"{gain:.2f}x  {name}" for name, gain in
              zip(result["order"], result["mean_speedup"], strict=True)]  # fmt: skip
    return "\n".join(lines)


def _timed(verb: str, options: argparse.Namespace, *more: str) -> tuple[dict[str, Any], float]:
    started = time.monotonic()
    text = _spectool(verb, options, *more)
    return json.loads(text), round(time.monotonic() - started, 1)


def _spectool(verb: str, options: argparse.Namespace, *more: str) -> str:
    where = ["--store", options.store] if options.store else []
    command = [sys.executable, "-m", "toolkit.cli", verb, options.recipe, *more, *where]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1], text=True
    )
    return done.stdout


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipe", default="smollm2/135m_draft_target")
    parser.add_argument("--draft", action="append")
    parser.add_argument("--store", default=None)
    parser.add_argument("--k", default="1..4")
    parser.add_argument("--batch", default="1,4")
    parser.add_argument("--max-tokens", default="64")
    parser.add_argument("--prompts-per-domain", default="24")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
