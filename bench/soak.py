"""Hours of bad days for a served model: python bench/soak.py [--minutes 10] [--layout inprocess]

Many clients stream at once; a part of them goes away in the middle, a part of the requests is
hostile (wrong types and shapes, texts of megabytes, values out of their domain, bytes that are no
text). Every answer to a good request is compared with plain greedy decoding of the same prompt,
which is exact in float32. In the end no sequence and no KV block may be held, and memory must not
have grown. The models are tiny (made here, seeded), so that the server is what is tested.

Exit code 1 when anything is wrong. The last line of --json is one document. --dump-stalls DIR keeps
the server's memory over time there and, when no token comes for ten seconds, what py-spy and gdb
(where installed) say about each of its processes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.e2e.soak import Conditions, soak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--layout", choices=["inprocess", "bls"], default="inprocess")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--cancel-rate", type=float, default=0.2)
    parser.add_argument("--hostile-rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dump-stalls", type=Path, metavar="DIR", help="log memory; stacks there")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    conditions = Conditions(
        layout=options.layout,
        seconds=options.minutes * 60,
        clients=options.clients,
        cancel_rate=options.cancel_rate,
        hostile_rate=options.hostile_rate,
        seed=options.seed,
    )
    with tempfile.TemporaryDirectory(prefix="bench-soak-") as area:
        report = soak(
            Path(area),
            conditions,
            say=lambda text: print(text, file=sys.stderr),
            stalls=options.dump_stalls,
        )
    if options.json:
        print(json.dumps(report.to_json()))
    else:
        print(report.describe())
    return 1 if report.problems() else 0


if __name__ == "__main__":
    sys.exit(main())
