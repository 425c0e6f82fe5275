"""A whole training session in one directory: data first, then the head, and how both were made.

    OUT/data/{heldout,train}-00000.safetensors   what the target answered and computed
    OUT/data/plan.json                           what decides them; another plan is refused
    OUT/config.json, OUT/model.safetensors       the best head so far
    OUT/curve.jsonl, OUT/state.safetensors       see fit.py
    OUT/training.json                            command, data and held-out results, for people

Interrupted anywhere, the same command goes on: with the first shard that is missing, then from the
last evaluation.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from toolkit.backends.cpu.model import CpuModel
from toolkit.checkpoint.read import Checkpoint
from toolkit.checkpoint.tokenizer import load_tokenizer
from toolkit.engine.cpu import build_cpu_engine, engine_spec
from toolkit.engine.directory import read_engine
from toolkit.errors import InputError
from toolkit.provenance import provenance
from toolkit.recipe.schema import EngineLimits
from toolkit.speculation.drafters.eagle3 import default_layers
from toolkit.store import MANIFEST, Store, digest, write_atomic
from toolkit.training.batches import TrainingData
from toolkit.training.fit import CONFIG, Evaluation, Fit, FitOptions
from toolkit.training.generate import DataPlan, Generator
from toolkit.training.head import HeadKind, HeadOptions, draft_ids
from toolkit.training.prompts import load_prompt_book
from toolkit.training.published import StartFrom, begin
from toolkit.training.target import read_target

PLAN, RESULT = "plan.json", "training.json"
MAX_PROMPT = 256  # tokens; of a longer prompt the end is kept


@dataclass(frozen=True, kw_only=True)
class TargetFiles:
    """Where the target lies in the store."""

    checkpoint_digest: str
    checkpoint_dir: Path
    tokenizer_dir: Path


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which outputs to train on."""

    prompts: Path
    sequences: int = 4096
    heldout: int = 256
    shard: int = 256
    max_tokens: int = 112
    batch: int = 64  # sequences that the target decodes together
    seed: int = 0

    def plan(self, longest: int | None) -> DataPlan:
        """For a target whose texts are at most `longest` tokens."""
        room = MAX_PROMPT if longest is None else min(MAX_PROMPT, longest - self.max_tokens)
        if room < 1:
            raise InputError(
                f"--max-tokens {self.max_tokens}: prompt and output of the target have "
                f"{longest} tokens at most"
            )
        return DataPlan(
            split="train",
            seed=self.seed,
            sequences=self.shard,
            max_tokens=self.max_tokens,
            max_prompt_tokens=room,
        )


Report = Callable[[str], None]


def generate_data(
    target: TargetFiles,
    options: DataOptions,
    directory: Path,
    store: Store,
    report: Report,
    *,
    threads: int | None = None,
) -> None:
    """Every shard of both splits that is not there yet; the held-out one first."""
    book = load_prompt_book(options.prompts)
    todo = missing_shards(target, options, directory)
    if not any(todo.values()):
        return
    model = target_model(target, options, store, threads)
    tokenizer = load_tokenizer(target.tokenizer_dir)
    for split, shards in todo.items():

        def say(number: int, tokens: int, split: str = split) -> None:
            report(f"{split} shard {number}: {tokens} tokens")

        plan = data_plan(target, options, split)
        Generator(model, tokenizer, book, plan).fill(directory, shards, say)


def data_plan(target: TargetFiles, options: DataOptions, split: str) -> DataPlan:
    """Which outputs one split wants of this target."""
    config = Checkpoint(target.checkpoint_dir).config
    plan = options.plan(config["max_position_embeddings"])
    return replace(plan, split=split)  # type: ignore[arg-type]


def missing_shards(
    target: TargetFiles, options: DataOptions, directory: Path
) -> dict[str, list[int]]:
    """Split -> numbers of the shards that are not there yet; data of another plan is refused."""
    plans = {split: data_plan(target, options, split) for split in ("heldout", "train")}
    _same_plan(directory, target, options)
    counts = {"heldout": options.heldout, "train": options.sequences}
    return {
        split: [
            number
            for number in range(-(-counts[split] // options.shard))
            if not plan.shard(directory, number).exists()
        ]
        for split, plan in plans.items()
    }


def train(
    kind: type[HeadKind],
    target: TargetFiles,
    data_dir: Path,
    out: Path,
    head: HeadOptions,
    fit: FitOptions,
    report: Callable[[Evaluation], None],
    *,
    threads: int | None = None,
    device: str = "cpu",
    start: StartFrom | None = None,
    store: Store | None = None,
) -> dict[str, Any]:
    """One head on what is in `data_dir` (and on shards that come while it runs).

    A new run may begin with a published head, whose record the store's hashes make; one that goes
    on ignores `start`, and has the sizes of the head that it began with from what it wrote.
    """
    whole = read_target(target.checkpoint_dir)
    if threads:
        import torch

        torch.set_num_threads(threads)
    data = TrainingData(data_dir, "train")
    heldout = TrainingData(data_dir, "heldout")
    _check_data(data, heldout, whole.settings.hidden_size)
    vocab = whole.settings.vocab_size
    ids = draft_ids(data.token_counts(vocab), head.draft_vocab)
    made = kind(whole, head, ids, device)
    begun, record = begin(made, out, start, store or Store())
    if record:
        # It drafts deep already: nothing is to be learnt one depth after the other.
        fit = replace(fit, depths=(0.0,) * len(fit.depths))
    run = Fit(made, data, heldout, out, fit, begun, record)

    def keep(found: Evaluation) -> None:
        result = _result(kind, run, fit, data)
        write_atomic(out / RESULT, json.dumps(result, indent=2) + "\n")
        report(found)

    run.run(keep)
    return _result(kind, run, fit, data)


def copy_tokenizer(target: TargetFiles, out: Path) -> None:
    """A draft model needs one of its own: the target's."""
    out.mkdir(parents=True, exist_ok=True)
    for file in target.tokenizer_dir.glob("*.json"):
        if file.name not in (MANIFEST, CONFIG):
            write_atomic(out / file.name, file.read_bytes())


def target_model(
    target: TargetFiles, options: DataOptions, store: Store, threads: int | None
) -> CpuModel:
    """An engine of the target that shows the states that any head reads."""
    plan = data_plan(target, options, "train")
    limits = EngineLimits(
        max_batch_size=options.batch,
        max_input_len=plan.max_prompt_tokens,
        max_seq_len=plan.max_prompt_tokens + options.max_tokens,
    )
    entry = store.publish(
        "engines",
        engine_spec(target.checkpoint_digest, limits, _captured),
        lambda out: build_cpu_engine(target.checkpoint_dir, out, limits, _captured),
    )
    return CpuModel(read_engine(entry.path), threads=threads)


def _captured(layers: int) -> tuple[int, ...]:
    """Those of EAGLE-3 (shallow targets have no three of them), and the final states."""
    return (*(max(0, i) for i in default_layers(layers)), layers)


def _same_plan(directory: Path, target: TargetFiles, options: DataOptions) -> None:
    """Shards of another target or of other settings must not end up in one heap."""
    words = {
        "target": target.checkpoint_digest,
        "prompts": digest({"files": _texts(options.prompts)}),
        "shard": options.shard,
        "max_tokens": options.max_tokens,
        "seed": options.seed,
    }
    path = directory / PLAN
    if not path.exists():
        write_atomic(path, json.dumps(words, indent=2) + "\n")
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = {}
    if wrong := [key for key, value in words.items() if found.get(key) != value]:
        raise InputError(
            f"{directory}: holds data of another {' and '.join(wrong)}; name another --data, or "
            "remove it"
        )


def _texts(prompts: Path) -> dict[str, str]:
    files = sorted(prompts.glob("*.txt")) if prompts.is_dir() else [prompts]
    return {file.name: file.read_text(encoding="utf-8-sig") for file in files}


def _check_data(data: TrainingData, heldout: TrainingData, hidden: int) -> None:
    for found in (data, heldout):
        if not found.samples:
            raise InputError(
                f"{found.directory}: no {found.split} shard; generate data first (without --only)"
            )
        width = found.samples[0].hidden.shape[1]
        if width != 4 * hidden:
            raise InputError(
                f"{found.directory}: states of {width} numbers a token, the target's are 4 x "
                f"{hidden}: data of another model"
            )


def _result(kind: type[HeadKind], run: Fit, fit: FitOptions, data: TrainingData) -> dict[str, Any]:
    """What a reader wants to know who finds only the head."""
    best = run.best_evaluation()
    return {
        "kind": kind.__name__,
        "command": shlex.join(["spectool", *sys.argv[1:]]),
        "made_by": {key: value for key, value in provenance().items() if key != "argv"},
        "data": {"sequences": len(data.samples), "tokens": data.tokens},
        "started_from": run.progress.started_from,
        "head": asdict(run.kind.options),
        "fit": asdict(fit),
        "steps": run.progress.step,
        "minutes": round(run.progress.seconds / 60, 1),
        "heldout": best and {
            "acceptance_length": best["acceptance_length"],
            "conditional_acceptance": best["conditional"],
            "draft_tokens": run.kind.depth,
            "at_step": best["step"],
        },
    }  # fmt: skip
