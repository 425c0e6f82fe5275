"""Conversion beside a plain file copy: time and peak memory. One command: python bench/convert.py

A random bfloat16 Llama of the asked size is written once, then copied with `cp` and converted, in
turns, each in its own process. What is printed are ratios: absolute times are the disk's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from toolkit.checkpoint.safetensors_file import DTYPES, header_bytes

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, VOCAB = 2048, 8192, 32, 8, 128256
CONVERT = """
import sys
from pathlib import Path
from toolkit.checkpoint.convert import convert
from toolkit.checkpoint.source import open_source
from toolkit.recipe.schema import ModelSpec, Parallel
model, out, tp = sys.argv[1], sys.argv[2], int(sys.argv[3])
convert(open_source(model), Path(out), ModelSpec(checkpoint=model, parallel=Parallel(tp=tp)))
"""


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="bench-convert-") as area:
        model = Path(area) / "model"
        size = write_model(model, options.gigabytes)
        runs: dict[str, list[tuple[float, float]]] = {}
        for _ in range(options.repeats):
            for name, command in commands(model, Path(area)).items():
                runs.setdefault(name, []).append(measure(command, Path(area) / "out"))
    result = summary(runs, size)
    print(json.dumps(result, indent=2) if options.json else table(result))
    good = all(row["time_ratio"] < 3 and (row["peak_mb"] or 0) < 400 for row in result["rows"])
    return 0 if good else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dir", default=None, help="where to work; needs three times the size")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def commands(model: Path, area: Path) -> dict[str, list[str]]:
    """What is compared; each fills `area`/out."""
    out = str(area / "out")
    convert = [sys.executable, "-c", CONVERT, str(model), out]
    return {
        "cp": ["cp", "-r", str(model), out],
        "convert tp 1": [*convert, "1"],
        "convert tp 2": [*convert, "2"],
    }


def write_model(model: Path, gigabytes: float) -> int:
    """A Llama of about this size in one file; returns its bytes."""
    kv = HIDDEN // HEADS * KV_HEADS
    layer = {
        "input_layernorm.weight": (HIDDEN,),
        "self_attn.q_proj.weight": (HIDDEN, HIDDEN),
        "self_attn.k_proj.weight": (kv, HIDDEN),
        "self_attn.v_proj.weight": (kv, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, HIDDEN),
        "post_attention_layernorm.weight": (HIDDEN,),
        "mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
    }
    outer = 2 * VOCAB * HIDDEN * 2
    layer_bytes = 2 * sum(int(np.prod(shape)) for shape in layer.values())
    layers = max(1, round((gigabytes * 1e9 - outer) / layer_bytes))
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    shapes |= {
        f"model.layers.{i}.{name}": shape for i in range(layers) for name, shape in layer.items()
    }
    shapes |= {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}
    config = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB, "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE, "num_hidden_layers": layers,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 4096, "tie_word_embeddings": False,
    }  # fmt: skip
    model.mkdir()
    (model / "config.json").write_text(json.dumps(config))
    file = model / "model.safetensors"
    noise = np.random.default_rng(0).integers(0, 2**14, 1 << 22, dtype=np.uint16)
    with file.open("wb") as stream:
        stream.write(header_bytes({name: (DTYPES["BF16"], s) for name, s in shapes.items()}))
        left = 2 * sum(int(np.prod(shape)) for shape in shapes.values())
        while left:
            left -= stream.write(noise.view(np.uint8)[:left].data)
    return file.stat().st_size


def measure(command: list[str], out: Path) -> tuple[float, float]:
    """(seconds, peak resident MB) of one process; what earlier runs left unwritten is flushed."""
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=Path(__file__).parents[1])
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[0]} failed with {process.returncode}")
    return seconds, usage.ru_maxrss / 1000


def summary(runs: dict[str, list[tuple[float, float]]], size: int) -> dict[str, object]:
    base = median(seconds for seconds, _ in runs["cp"])
    rows = [
        {
            "what": name,
            "seconds": round(median(seconds for seconds, _ in found), 2),
            "time_ratio": round(median(seconds for seconds, _ in found) / base, 2),
            # Before its exec, cp's process was a copy of this one: that is all its peak says.
            "peak_mb": None if name == "cp" else round(max(peak for _, peak in found)),
        }
        for name, found in runs.items()
    ]
    return {"bytes": size, "repeats": len(runs["cp"]), "rows": rows}


def table(result: dict[str, object]) -> str:
    lines = [f"{int(str(result['bytes'])) / 1e9:.2f} GB of bfloat16, median of {result['repeats']}"]
    lines.append(f"{'':<14}{'seconds':>9}{'x cp':>7}{'peak MB':>9}")
    for row in result["rows"]:  # type: ignore[attr-defined]
        lines.append(
            f"{row['what']:<14}{row['seconds']:>9}{row['time_ratio']:>7}{row['peak_mb'] or '':>9}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
