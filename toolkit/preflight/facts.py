"""Everything that the checks look at: headers, config files and tokenizers, nothing heavy."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from toolkit.backends.interfaces import LoadingBackend
from toolkit.checkpoint.config import checkpoint_config, family_of
from toolkit.checkpoint.convert import placed
from toolkit.checkpoint.drafts.kinds import refuse_head_as_model
from toolkit.checkpoint.heads.combine import combine
from toolkit.checkpoint.heads.head import Head, HeadSpec, head_of
from toolkit.checkpoint.heads.source import HEAD_FILES, open_head_files, open_heads
from toolkit.checkpoint.interfaces import Source
from toolkit.checkpoint.model_tokenizer import (
    open_tokenizer_files,
    tokenizer_files_here,
    tokenizer_place,
)
from toolkit.checkpoint.quantization import WEIGHT_ONLY
from toolkit.checkpoint.ready import ReadyCheckpoint, open_ready
from toolkit.checkpoint.safetensors_file import Span
from toolkit.checkpoint.small_files import SmallFiles, open_small_files, small_files_here
from toolkit.checkpoint.source import kind_of, open_source
from toolkit.checkpoint.tokenizer import Tokenizer, load_tokenizer
from toolkit.checkpoint.write import Part
from toolkit.engine.trtllm.directory import TrtEngine, read_engine
from toolkit.errors import CheckpointError, InputError, SpectoolError
from toolkit.preflight.access import Access, not_fetched
from toolkit.preflight.report import Finding, Report, findings_of
from toolkit.recipe.release import Release, release
from toolkit.recipe.schema import ModelSpec, Recipe
from toolkit.registry import BACKENDS, DRAFTERS, HEADS
from toolkit.store import Store


@dataclass(frozen=True)
class Placed:
    """A checkpoint as it would be written: config.json and every tensor's parts."""

    config: Mapping[str, Any]
    tensors: Mapping[str, list[Part]]
    first_rank: Mapping[str, Span] | None = None  # of a checkpoint that is copied as it is


@dataclass
class Facts:
    """What could be opened; what could not is in the report already."""

    recipe: Recipe
    sources: dict[str, Source] = field(default_factory=dict)  # by role
    ready: dict[str, ReadyCheckpoint] = field(default_factory=dict)  # copied, not converted
    away: list[str] = field(default_factory=list)  # roles whose weights are not fetched yet
    small: dict[str, SmallFiles] = field(default_factory=dict)  # what is here of those
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)  # without heads
    tokenizers: dict[str, Tokenizer] = field(default_factory=dict)
    heads: Source | None = None
    engines: dict[str, TrtEngine] = field(default_factory=dict)
    repository: Path | None = None
    gpu: str | None = None
    gpu_memory: float | None = None  # GiB
    # Hugging Face's config.json by role, for a backend that loads checkpoints as they are.
    loaded: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _placed: dict[str, Placed | CheckpointError] = field(default_factory=dict)

    @property
    def models(self) -> dict[str, ModelSpec]:
        return self.recipe.models()

    @cached_property
    def head(self) -> HeadSpec | None:
        """The heads that are converted into the target's checkpoint."""
        return head_of(self.recipe)

    @cached_property
    def release(self) -> Release:
        return release(self.recipe.tensorrt_llm) or (1, 2)

    def placed(self, role: str) -> Placed:
        """The checkpoint of `role`, heads included; CheckpointError with all its problems."""
        if role not in self._placed:
            try:
                self._placed[role] = self._place(role)
            except CheckpointError as error:
                self._placed[role] = error
        found = self._placed[role]
        if isinstance(found, CheckpointError):
            raise found
        return found

    @property
    def described(self) -> dict[str, dict[str, Any]]:
        """The models in a converted config's words, where nothing is converted too."""
        unconverted = {role: _described(config) for role, config in self.loaded.items()}
        return unconverted | self.configs

    def _drafts_for(self, config: Mapping[str, Any]) -> bool:
        """Whether there are such heads for this target at all; P1 says so where there are not."""
        assert self.head
        kind: Head = HEADS[self.head.kind]
        return kind.architecture(config["architecture"], self.head.release) is not None

    def _place(self, role: str) -> Placed:
        if role in self.ready:
            return Placed(self.configs[role], {}, self.ready[role].ranks[0])
        if role not in self.sources:
            raise CheckpointError(self.models[role].checkpoint, ["not fetched yet"])
        source, model, config = self.sources[role], self.models[role], self.configs[role]
        if role == "target" and self.head and self.heads and self._drafts_for(config):
            whole = combine(source, self.heads, model, self.head)
            return Placed(whole.config, whole.tensors)
        return Placed(config, placed(source, family_of(source.config, model), config, model))


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
            if role == "draft" and access.has_weights(checkpoint, revision):
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


def _described(config: Mapping[str, Any]) -> dict[str, Any]:
    text = config.get("text_config")
    words = {**config, **text} if isinstance(text, Mapping) else config
    heads = words.get("num_attention_heads", "?")
    names = config.get("architectures") or ["?"]
    return {
        "architecture": str(names[0]),
        "num_hidden_layers": words.get("num_hidden_layers", "?"),
        "hidden_size": words.get("hidden_size", "?"),
        "num_attention_heads": heads,
        "num_key_value_heads": words.get("num_key_value_heads", heads),
        "vocab_size": words.get("vocab_size", "?"),
        "dtype": str(words.get("torch_dtype") or words.get("dtype") or "?"),
    }


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
