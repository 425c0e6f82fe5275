"""Every way to draft against plain decoding: the same prompts, one after the other, in one run.

    python bench/drafters.py [--recipes smollm2/135m_ngram ...] [--prompts 10] [--max-tokens 64]

Greedy, batch 1, bfloat16 where the machine has it. Each prompt is decoded plainly and then by
every drafter, so that a slow minute of the machine slows all of them. Prints, for each drafter and
domain, the speed-up (TPOT plain over TPOT with drafts) with its 95 % interval over prompts,
acceptance_length and k, and the same as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from toolkit.backends.runtime import Runtime, open_runtime
from toolkit.execute import build
from toolkit.measure.metrics import acceptance_length, tpot_ns
from toolkit.measure.prompts import BUNDLED, load_prompt_sets
from toolkit.measure.records import RequestRecord
from toolkit.measure.run import Conditions, EncodedPrompt, encode_prompt, measure_group
from toolkit.plan import make_plan
from toolkit.recipe.load import load_recipe
from toolkit.recipe.schema import Recipe, Sampling
from toolkit.speculation.generation import GenerationLoop
from toolkit.store import Store

RECIPES = {
    "smollm2/135m_eagle3": 3,
    "smollm2/135m_eagle3_tree": 3,
    "smollm2/135m_medusa": 3,
    "smollm2/135m_ngram": 8,
    "smollm2/135m_suffix": 8,
    "smollm2/135m_lookahead": 4,
    "smollm2/135m_self": 2,
    "smollm2/135m_draft_target": 2,
}
RESAMPLES = 2000


@dataclass(frozen=True)
class Drafting:
    """One recipe, loaded."""

    name: str
    k: int
    runtime: Runtime
    loop: GenerationLoop


def opened(name: str, k: int, store: Store) -> Drafting:
    recipe: Recipe = load_recipe(name)
    runtime = open_runtime(build(make_plan(recipe, store), store))
    return Drafting(name, k, runtime, runtime.loop())


def speed_up(plain: list[float], drafted: list[float]) -> dict[str, float]:
    """Mean TPOT over mean TPOT, resampled over prompts."""
    both = np.array([plain, drafted])
    drawn = both[
        :, np.random.default_rng(0).integers(both.shape[1], size=(RESAMPLES, both.shape[1]))
    ]
    ratios = drawn[0].sum(axis=1) / drawn[1].sum(axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return {"speedup": both[0].sum() / both[1].sum(), "low": float(low), "high": float(high)}


def measured(one: Drafting, prompt: EncodedPrompt, k: int, conditions: Conditions) -> RequestRecord:
    group = measure_group(one.loop, [prompt], k=k, round=prompt.id, conditions=conditions)
    return group.requests[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    parser.add_argument("--k", type=int, help="draft length of every drafter; its own if left out")
    parser.add_argument("--prompts", type=int, default=10, help="of each domain")
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()
    store = Store()
    drafters = [opened(name, options.k or RECIPES.get(name, 4), store) for name in options.recipes]
    tokenizer = drafters[0].runtime.tokenizer
    conditions = Conditions(
        max_tokens=options.max_tokens,
        sampling=Sampling(),
        stop_tokens=frozenset(tokenizer.eos_ids),
    )
    rows: list[dict[str, Any]] = []
    for domain in load_prompt_sets({name: name for name in BUNDLED}, limit=options.prompts):
        records: dict[str, list[RequestRecord]] = {one.name: [] for one in drafters}
        plain: list[float] = []
        for number, prompt in enumerate(domain.prompts):
            encoded = encode_prompt(tokenizer, domain.domain, prompt)
            print(f"{domain.domain} {number + 1}/{len(domain.prompts)}", file=sys.stderr)
            before = measured(drafters[0], encoded, 0, conditions)
            if before.output_tokens < 8:
                continue
            plain.append(tpot_ns(before))
            for one in drafters:
                records[one.name].append(measured(one, encoded, one.k, conditions))
        for one in drafters:
            found = records[one.name]
            rows.append(
                {
                    "recipe": one.name,
                    "domain": domain.domain,
                    "k": one.k,
                    "prompts": len(found),
                    "acceptance_length": acceptance_length(found),
                    **speed_up(plain, [tpot_ns(record) for record in found]),
                }
            )
    print_table(rows)
    print(json.dumps(rows))


def print_table(rows: list[dict[str, Any]]) -> None:
    domains = list(dict.fromkeys(row["domain"] for row in rows))
    print(f"{'speed-up (interval), tokens per step':<40}", *(f"{d:>26}" for d in domains))
    for name in dict.fromkeys(row["recipe"] for row in rows):
        cells = [
            f"{r['speedup']:.2f} ({r['low']:.2f}-{r['high']:.2f}), {r['acceptance_length']:.2f}"
            for r in rows
            if r["recipe"] == name
        ]
        k = next(row["k"] for row in rows if row["recipe"] == name)
        print(f"{name + f' k={k}':<40}", *(f"{cell:>26}" for cell in cells))


if __name__ == "__main__":
    main()
