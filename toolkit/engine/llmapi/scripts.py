"""The start scripts of a deployment. Every value from a recipe is quoted for the shell."""

from __future__ import annotations

import shlex
from string import Template

from toolkit.engine.llmapi.profiles import profile
from toolkit.errors import InputError
from toolkit.recipe.schema import Recipe

_SERVE = Template("""\
#!/usr/bin/env bash
# Serve the model with trtllm-serve; run inside a container with TensorRT-LLM $release.
# SERVE_MODEL, SERVE_HOST and SERVE_PORT replace the values below; options are passed on.
# The configuration says everything else: giving an option that it holds makes one of them lose.
set -euo pipefail
here=$$(cd -- "$$(dirname -- "$${BASH_SOURCE[0]}")" && pwd)
default=$model
model=$${SERVE_MODEL:-$$default}
host=$${SERVE_HOST:-$host}
port=$${SERVE_PORT:-$port}
work=$$(mktemp -d)
python3 "$$here/probe.py" --out "$$work/llm_args.yaml"
exec trtllm-serve "$$model" --backend pytorch --host "$$host" --port "$$port" \\
  $option "$$work/llm_args.yaml" "$$@"
""")

_BENCH = Template("""\
#!/usr/bin/env bash
# Measure with trtllm-bench: bench.sh DATASET [options]; run inside a container with TensorRT-LLM
# $release. BENCH_MODEL and BENCH_REPORT replace the model and where the report goes.
set -euo pipefail
if [[ $$# -lt 1 ]]; then
  echo "usage: $$0 DATASET [trtllm-bench options]" >&2
  exit 2
fi
here=$$(cd -- "$$(dirname -- "$${BASH_SOURCE[0]}")" && pwd)
dataset=$$1
shift
default=$model
model=$${BENCH_MODEL:-$$default}
report=$${BENCH_REPORT:-bench_report.json}
work=$$(mktemp -d)
python3 "$$here/probe.py" --out "$$work/llm_args.yaml"
where=()
if [[ -d "$$model" ]]; then where=(--model_path "$$model"); fi
exec trtllm-bench --model "$$model" "$${where[@]}" throughput --backend pytorch$ranks \\
  --dataset "$$dataset" --report_json "$$report" --streaming \\
  $option "$$work/llm_args.yaml" "$$@"
""")


def serve_script(recipe: Recipe) -> str:
    """serve.sh: the OpenAI endpoint, on this machine only unless HOST says otherwise."""
    return _SERVE.substitute(
        release=recipe.tensorrt_llm,
        model=_quoted(recipe),
        host=shlex.quote(recipe.serve.host),
        port=recipe.serve.http_port,
        option=profile(recipe.tensorrt_llm).config_option,
    )


def bench_script(recipe: Recipe) -> str:
    """bench.sh: throughput of a dataset, with the report that spectool reads."""
    parallel = recipe.target.parallel
    # trtllm-bench plans by its own options; these repeat what the configuration says.
    ranks = f" --tp {parallel.tp} --pp {parallel.pp}" if parallel.tp * parallel.pp > 1 else ""
    return _BENCH.substitute(
        release=recipe.tensorrt_llm,
        model=_quoted(recipe),
        ranks=ranks,
        option=profile(recipe.tensorrt_llm).config_option,
    )


def _quoted(recipe: Recipe) -> str:
    checkpoint = recipe.target.checkpoint
    if checkpoint.startswith("-") or "\x00" in checkpoint:
        raise InputError(f"target.checkpoint {checkpoint!r} cannot stand on a command line")
    return shlex.quote(checkpoint)
