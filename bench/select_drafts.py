"""Ranking five drafts without generating with any: python bench/select_drafts.py

`spectool select` ranks the recipe's own draft (four layers), another layer subset, its int8 form,
lookup and an EAGLE-3 head. Beside it `spectool tune` measures plain decoding and one draft length
at two batch sizes, which is what ranking must undercut; then every candidate is measured in closed
loop on the same prompts, at the draft lengths that select gave it, to see whether the order holds.
All start from built engines, one after the other. The last line of --json is one document.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from itertools import combinations
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.commands import ROOT, spectool
from toolkit.recipe.load import dump_recipe, load_recipe
from toolkit.tuning.candidates import candidates

HEAD = ROOT / "recipes" / "smollm2" / "135m_eagle3.yaml"
DRAFTS = ("target@layers=0,29", "draft@w8a16", "ngram", str(HEAD))
POINTS = 2


def main() -> int:
    options = _options()
    drafts = options.draft or DRAFTS
    words = [word for draft in drafts for word in ("--draft", draft)]
    texts = ["--max-tokens", options.max_tokens, "--prompts-per-domain", options.prompts_per_domain]
    sizes = ["--batch", options.batch, *texts]
    seed = ["--seed", str(time.time_ns() % 2**31)]
    with tempfile.TemporaryDirectory(prefix="bench-select-") as folder:
        area = Path(folder)
        few = ["--batch", "1", "--max-tokens", "4", "--prompts-per-domain", "2", "--k", "1"]
        _spectool("select", options, *words, *few)  # builds every engine
        found, took = _timed("select", options, *words, *sizes, "--k", options.k, *seed, "--json")
        longest = options.k.rpartition(".")[2]
        points = ["--mode", "grid", "--k", longest, "--out", str(area / "grid")]
        _, grid_took = _timed("tune", options, *sizes, *points, "--json", *seed)
        recipes = {c.name: c.recipe for c in candidates(load_recipe(options.recipe), drafts)}
        ranked = []
        for number, each in enumerate(found["candidates"]):
            file = area / f"{number}.yaml"
            file.write_text(dump_recipe(recipes[each["name"]]), encoding="utf-8")
            loop = _closed_loop(options, str(file), each["points"], area / str(number), texts, seed)
            ranked.append({"name": each["name"], "predicted": each["mean_speedup"], **loop})
    result = {
        "select_s": took,
        "grid_points_s": grid_took,
        "candidates": ranked,
        "swapped": swapped(ranked),
    }
    print(json.dumps(result) if options.json else table(result))
    return 0


def swapped(ranked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pairs that closed loop has the other way round; `surely`: their intervals lie apart."""
    return [
        {
            "ahead": first["name"],
            "behind": second["name"],
            "surely": first["high"] < second["low"],
        }
        for first, second in combinations(ranked, 2)
        if first["measured"] < second["measured"]
    ]


def table(result: dict[str, Any]) -> str:
    lines = [
        f"select over {len(result['candidates'])} candidates {result['select_s']:.1f} s; "
        f"{POINTS} grid points {result['grid_points_s']:.1f} s",
        "predicted  measured in closed loop",
    ]
    lines += [
        f"{c['predicted']:8.2f}x  {c['measured']:.2f}x ({c['low']:.2f} to {c['high']:.2f})  "
        f"{c['name']}"
        for c in result["candidates"]
    ]
    lines += [
        f"swapped: {pair['behind']} is ahead of {pair['ahead']} in closed loop"
        + ("" if pair["surely"] else "; their intervals overlap")
        for pair in result["swapped"]
    ]
    return "\n".join(lines if result["swapped"] else [*lines, "the same order in closed loop"])


def _closed_loop(
    options: argparse.Namespace,
    recipe: str,
    points: list[dict[str, Any]],
    out: Path,
    texts: list[str],
    seed: list[str],
) -> dict[str, float]:
    """Geometric means over the batch sizes, of speed-ups and of the ends of their intervals."""
    cells = []
    for point in points:
        batch, k = str(point["batch_size"]), str(point["k"])
        words = ["--batch", batch, "--k", k, *texts, *seed, "--out", str(out / batch), "--json"]
        # Heads have no other layout.
        words += ["--mode", "grid", "--set", "serve.layout=inprocess"]
        found = json.loads(_spectool("tune", options, *words, recipe=recipe))
        [pool] = [c for c in found["summary"] if c["domain"] == "all" and c["k"] == point["k"]]
        cells.append(pool["speedup"])
    return {
        name: math.exp(sum(math.log(cell[key]) for cell in cells) / len(cells))
        for name, key in (("measured", "value"), ("low", "low"), ("high", "high"))
    }


def _timed(verb: str, options: argparse.Namespace, *more: str) -> tuple[dict[str, Any], float]:
    started = time.monotonic()
    text = _spectool(verb, options, *more)
    return json.loads(text), round(time.monotonic() - started, 1)


def _spectool(verb: str, options: argparse.Namespace, *more: str, recipe: str | None = None) -> str:
    where = ["--store", options.store] if options.store else []
    where += ["--threads", options.threads] if options.threads else []
    return spectool(verb, recipe or options.recipe, *more, *where)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipe", default="smollm2/135m_draft_target")
    parser.add_argument("--draft", action="append")
    parser.add_argument("--store", default=None)
    parser.add_argument("--k", default="1..4")
    parser.add_argument("--batch", default="1,4")
    parser.add_argument("--max-tokens", default="64")
    parser.add_argument("--prompts-per-domain", default="24")
    parser.add_argument("--threads", default=None)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
