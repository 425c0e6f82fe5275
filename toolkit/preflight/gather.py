"""Open what a recipe names, as far as a check may, for the checks to look at."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from toolkit.backends.interfaces import LoadingBackend
from toolkit.checkpoint.config import checkpoint_config, family_of
from toolkit.checkpoint.convert import placed
from toolkit.checkpoint.drafts.kinds import refuse_head_as_model
from toolkit.checkpoint.heads.source import HEAD_FILES, open_head_files, open_heads
from toolkit.checkpoint.interfaces import Source
from toolkit.checkpoint.model_tokenizer import (
    open_tokenizer_files,
    tokenizer_files_here,
    tokenizer_place,
)
from toolkit.checkpoint.quantization import WEIGHT_ONLY
from toolkit.checkpoint.ready import open_ready
from toolkit.checkpoint.small_files import open_small_files, small_files_here
from toolkit.checkpoint.source import kind_of, open_source
from toolkit.checkpoint.tokenizer import load_tokenizer
from toolkit.engine.trtllm.directory import read_engine
from toolkit.errors import CheckpointError, InputError, SpectoolError
from toolkit.preflight.access import Access, not_fetched
from toolkit.preflight.facts import Facts
from toolkit.preflight.report import Finding, Report, findings_of
from toolkit.recipe.schema import ModelSpec, Recipe
from toolkit.registry import BACKENDS, DRAFTERS, HEADS
from toolkit.store import Store


def gather(
    recipe: Recipe,
    store: Store,
    report: Report,
    *,
    fetch: bool = False,
    offline: bool | None = None,
    engines: Mapping[str, Path] | None = None,
    repository: Path | None = None,
    gpu: str | None = None,
    gpu_memory: float | None = None,
) -> Facts:
    """Open what the recipe names and is here, or all of it; the rest goes into the report."""
    access = Access(store, fetch, offline)
    facts = Facts(recipe, repository=repository, gpu=gpu, gpu_memory=gpu_memory)
    if recipe.backend in BACKENDS and issubclass(BACKENDS[recipe.backend], LoadingBackend):
        _look_at_small_files(facts, report, access)
        for role in engines or {}:
            none = InputError(f"backend {recipe.backend!r} runs no engines; leave it out")
            report.add(f"{role} engine", none)
        return facts
    for role, model in recipe.models().items():
        try:
            _open_model(facts, role, model, report, access)
        except SpectoolError as error:
            report.add(role, error)
    _open_heads(facts, report, access)
    _open_tokenizers(facts, report, access)
    for role, directory in (engines or {}).items():
        try:
            facts.engines[role] = read_engine(directory)
        except InputError as error:
            report.add(f"{role} engine", error)
    return facts


def _open_model(facts: Facts, role: str, model: ModelSpec, report: Report, access: Access) -> None:
    checkpoint, revision = model.checkpoint, model.revision
    if kind_of(checkpoint) == "ready":
        heads = facts.head.kind if facts.head and role == "target" else None
        facts.ready[role] = open_ready(model, heads=heads)
        facts.configs[role] = facts.ready[role].config
        return
    if not access.has_weights(checkpoint, revision):
        _open_without_weights(facts, role, model, report)
        return
    if role != "target":
        refuse_head_as_model(checkpoint, revision, offline=access.offline)
    source = open_source(checkpoint, revision, store=access.store, offline=access.offline)
    facts.sources[role] = source
    facts.configs[role] = checkpoint_config(source.config, model)


def _open_without_weights(facts: Facts, role: str, model: ModelSpec, report: Report) -> None:
    """config.json and the tokenizer may be here all the same."""
    away = kind_of(model.checkpoint) == "hub"
    small = small_files_here(model.checkpoint, model.revision) if away else None
    tokenizer = model.tokenizer is None and not (small and small.has_tokenizer)
    unchecked = "tensors and tokenizer" if tokenizer else "tensors"
    report.take(not_fetched(role, model.checkpoint, unchecked))
    facts.away.append(role)
    if small is None:
        return
    facts.small[role] = small
    # How weights are quantised may stand in a file that is not here.
    if (model.quantization or "").lower() in ("", *WEIGHT_ONLY):
        facts.configs[role] = checkpoint_config(small.config, model)


def _look_at_small_files(facts: Facts, report: Report, access: Access) -> None:
    """Weights that are not converted may be large and far away; config and tokenizer say enough.

    What is on the hub and not here is no fault of the recipe: it is checked where it is.
    """
    recipe = facts.recipe
    draft = DRAFTERS[recipe.speculation.drafter].llmapi_draft(recipe.speculation)
    places = {"target": (recipe.target.checkpoint, recipe.target.revision)}
    if draft:
        places["draft"] = (draft.source.checkpoint, draft.source.revision)
    for role, (checkpoint, revision) in places.items():
        try:
            head = draft is not None and role == "draft" and draft.kind == "eagle3"
            if head:
                if access.has_heads(checkpoint, revision, HEAD_FILES):
                    facts.heads = open_head_files(checkpoint, revision, offline=access.offline)
                else:
                    report.take(not_fetched(role, checkpoint, "tensors"))
                continue
            if not access.has_small_files(checkpoint, revision):
                report.take(not_fetched(role, checkpoint, "config.json and tokenizer"))
                continue
            if role == "draft":
                refuse_head_as_model(checkpoint, revision, offline=access.offline)
            source = open_small_files(checkpoint, revision, offline=access.offline)
            facts.loaded[role] = source.config
            if source.has_tokenizer:
                facts.sources[role] = source
        except SpectoolError as error:
            _not_looked_at(report, role, checkpoint, error)
    _open_tokenizers(facts, report, access)
    for role, model in facts.models.items():
        # Sizes for the memory budget, of models that we could convert: no others are refused.
        with suppress(SpectoolError):
            if kind_of(model.checkpoint) == "directory":
                weights = open_source(model.checkpoint)
                config = checkpoint_config(weights.config, model)
                placed(weights, family_of(weights.config, model), config, model)
                facts.sources[role], facts.configs[role] = weights, config


def _not_looked_at(report: Report, role: str, checkpoint: str, error: SpectoolError) -> None:
    try:
        away = kind_of(checkpoint) == "hub"
    except InputError:
        away = False
    if away:
        why = "; ".join(finding.text for finding in findings_of(role, error))
        report.take(Finding(role, f"{checkpoint} not looked at, so less is checked: {why}", "note"))
    else:
        report.add(role, error)


def _open_heads(facts: Facts, report: Report, access: Access) -> None:
    options = facts.recipe.speculation
    named = DRAFTERS[options.drafter].heads(options)
    # A drafter whose heads are not converted still has some that can be looked at.
    named = named or getattr(options, "heads", None)
    if named is None:
        return
    files = HEADS[facts.head.kind].files if facts.head else HEAD_FILES
    try:
        if not access.has_heads(named.checkpoint, named.revision, files):
            report.take(not_fetched("heads", named.checkpoint, "tensors"))
            return
        facts.heads = (
            open_heads(facts.head, offline=access.offline)
            if facts.head
            else open_head_files(named.checkpoint, named.revision, offline=access.offline)
        )
    except SpectoolError as error:
        report.add("heads", error)


def _tokenizers(facts: Facts, report: Report, access: Access) -> dict[str, Source]:
    """By role, what has the tokenizer's files: the model itself, or the place that it names."""
    found: dict[str, Source] = {r: small for r, small in facts.small.items() if small.has_tokenizer}
    found |= facts.sources
    for role, model in facts.models.items():
        with suppress(InputError):  # a checkpoint that is nowhere was reported
            kind_of(model.checkpoint)
            try:
                place = tokenizer_place(model)
                if place is None:
                    continue
                found.pop(role, None)
                if access.fetch:
                    found[role] = open_tokenizer_files(model, offline=access.offline)
                elif here := tokenizer_files_here(place):
                    found[role] = here
                else:
                    report.take(not_fetched(f"{role} tokenizer", place, "tokens"))
            except SpectoolError as error:
                report.add(f"{role} tokenizer", error)
    return found


def _open_tokenizers(facts: Facts, report: Report, access: Access) -> None:
    with tempfile.TemporaryDirectory(prefix="spectool-check-") as area:
        for role, source in _tokenizers(facts, report, access).items():
            directory = Path(area) / role
            try:
                directory.mkdir()
                source.tokenizer_files(directory)
                facts.tokenizers[role] = load_tokenizer(directory)
            except CheckpointError as error:
                report.add(f"{role} tokenizer", error)
            except InputError as error:  # about the copy; the user knows the source
                named = str(error).replace(str(directory), source.name)
                report.add(f"{role} tokenizer", InputError(named))
