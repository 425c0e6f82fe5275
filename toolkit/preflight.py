"""Everything that can be known to go wrong before a build: no GPU, no conversion, no engine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.checkpoint.config import checkpoint_config, family_of
from toolkit.checkpoint.convert import placed
from toolkit.checkpoint.interfaces import Source
from toolkit.checkpoint.source import open_source
from toolkit.checkpoint.tokenizer import Tokenizer, load_tokenizer, write_tokenizer
from toolkit.errors import CheckpointError, InputError, MissingDependencyError, SpectoolError
from toolkit.measure.prompts import load_prompt_sets
from toolkit.recipe.schema import ModelSpec, Recipe
from toolkit.registry import BACKENDS
from toolkit.store import Store


@dataclass
class Report:
    """What stands in the way of a build, and what is worth knowing although it does not."""

    problems: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # packages and devices
    notes: list[str] = field(default_factory=list)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)  # role -> its config.json

    @property
    def ok(self) -> bool:
        return not self.problems and not self.missing

    def add(self, where: str, error: SpectoolError) -> None:
        found = error.problems if isinstance(error, CheckpointError) else [str(error)]
        kind = self.missing if isinstance(error, MissingDependencyError) else self.problems
        kind += [f"{where}: {problem}" for problem in found]


def preflight(recipe: Recipe, store: Store, *, offline: bool | None = None) -> Report:
    """Open every source, read headers and tokenizers, and compare them with the recipe."""
    report = Report()
    if reason := BACKENDS[recipe.backend].unavailable():
        report.missing.append(f"backend: {reason}")
    sources = dict(_sources(recipe, store, offline, report))
    for role, (source, model) in sources.items():
        _check_model(role, source, model, recipe, report)
    _check_tokenizers({role: source for role, (source, _) in sources.items()}, report)
    _check_tune(recipe, report)
    return report


def _sources(
    recipe: Recipe, store: Store, offline: bool | None, report: Report
) -> Iterator[tuple[str, tuple[Source, ModelSpec]]]:
    for role, model in recipe.models().items():
        try:
            source = open_source(model.checkpoint, model.revision, store=store, offline=offline)
        except SpectoolError as error:
            report.add(role, error)
        else:
            yield role, (source, model)


def _check_model(
    role: str, source: Source, model: ModelSpec, recipe: Recipe, report: Report
) -> None:
    """Sizes and splits by config.json, names and shapes by the tensors' headers, then limits."""
    try:
        config = checkpoint_config(source.config, model)
        report.models[role] = config
        placed(source, family_of(source.config, model), config, model)
    except InputError as error:
        report.add(role, error)
        return
    try:
        BACKENDS[recipe.backend].check(config, recipe.engine, model.checkpoint)
    except InputError as error:
        report.add(role, error)


def _check_tokenizers(sources: Mapping[str, Source], report: Report) -> None:
    """A draft token must mean what the target's token of that number means."""
    tokenizers: dict[str, Tokenizer] = {}
    with tempfile.TemporaryDirectory(prefix="spectool-check-") as area:
        for role, source in sources.items():
            directory = Path(area) / role
            try:
                write_tokenizer(source, directory)
                tokenizers[role] = load_tokenizer(directory)
            except CheckpointError as error:
                report.add(f"{role} tokenizer", error)
            except InputError as error:  # about the copy; the user knows the source
                named = str(error).replace(str(directory), source.name)
                report.add(f"{role} tokenizer", InputError(named))
    for role, tokenizer in tokenizers.items():
        rows = report.models.get(role, {}).get("vocab_size", tokenizer.vocab_size)
        if tokenizer.vocab_size > rows:
            report.problems.append(
                f"{role} tokenizer: has {tokenizer.vocab_size} tokens, the model only {rows}"
            )
        if role != "target" and "target" in tokenizers:
            differences = tokenizers["target"].compare(tokenizer)
            report.problems += [f"{role} tokenizer: {text}" for text in differences]


def _items(error: SpectoolError) -> list[str]:
    """The items of an error that lists them under a first line, or its one line."""
    first, *rest = str(error).splitlines()
    return rest or [first]


def _check_tune(recipe: Recipe, report: Report) -> None:
    tune, engine = recipe.tune, recipe.engine
    try:
        load_prompt_sets(tune.prompts, limit=tune.prompts_per_domain)
    except InputError as error:
        report.problems += [f"tune.prompts: {line.strip()}" for line in _items(error)]
    # Defaults that do not fit concern nobody who does not tune; what the recipe says must fit.
    said = tune.model_fields_set
    if max(tune.batch) > engine.max_batch_size:
        (report.problems if "batch" in said else report.notes).append(
            f"tune.batch: {max(tune.batch)} is above engine.max_batch_size "
            f"({engine.max_batch_size}); raise that, or measure smaller batches"
        )
    if tune.max_tokens >= engine.max_seq_len:
        (report.problems if "max_tokens" in said else report.notes).append(
            f"tune.max_tokens: {tune.max_tokens} leaves no room for a prompt in "
            f"engine.max_seq_len ({engine.max_seq_len})"
        )
    longest, drafted = max(tune.k), recipe.speculation.max_draft_len
    if longest > drafted and recipe.speculation.drafter != "none":
        report.notes.append(
            f"tune.k: goes up to {longest}, but a deployment of this recipe drafts at most "
            f"{drafted} (speculation.max_draft_len)"
        )
