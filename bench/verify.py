"""Does `verify` flag every planted bug, and pass the correct engine every time?

    python bench/verify.py [--runs 50] [--samples 96]

A small model on the embedded engine (24 tokens, so that samples are sharp), the bugs of
tests/measure/planted_bugs.py once each, then the correct engine with other seeds in every run. At
the false-alarm rate of 0.001 that `verify` has by default, 50 runs in a row fail by chance in 5 of
100 benchmarks; seeds are fixed, so the outcome is too.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.measure.planted_bugs import BUGS, CORRECT, SmallEngine, plan, verified


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=50)
    options.add_argument("--samples", type=int, default=96)
    given = options.parse_args()
    with TemporaryDirectory() as folder:
        engine = SmallEngine(Path(folder))
        start = perf_counter()
        flagged = [_flags(engine, name, given.samples) for name in BUGS]
        print(f"{sum(flagged)} of {len(BUGS)} bugs flagged in {perf_counter() - start:.0f} s")
        start = perf_counter()
        passed = [_passes(engine, seed, given.samples) for seed in range(1, given.runs + 1)]
        print(
            f"correct engine: {sum(passed)} of {len(passed)} runs passed in "
            f"{perf_counter() - start:.0f} s"
        )
    sys.exit(0 if all(flagged) and all(passed) else 1)


def _flags(engine: SmallEngine, name: str, samples: int) -> bool:
    found = verified(engine, BUGS[name], plan(samples))
    caught = [check.name for check in found.checks if not check.passed]
    print(f"{name}: {'flagged by ' + ', '.join(caught) if caught else 'MISSED'}", flush=True)
    return not found.passed


def _passes(engine: SmallEngine, seed: int, samples: int) -> bool:
    name = list(CORRECT)[seed % len(CORRECT)]
    found = verified(engine, CORRECT[name], plan(samples, seed=seed))
    sampled = found.checks[-1]
    print(f"run {seed} ({name}): {sampled.conclusion()}", flush=True)
    return found.passed


if __name__ == "__main__":
    main()
