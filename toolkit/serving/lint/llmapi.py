"""Rules for models of the LLM API, ours and upstream's: model.yaml, release, GPUs, draft."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.engine.llmapi.config_rules import judge
from toolkit.engine.llmapi.profile import Profile
from toolkit.engine.llmapi.profiles import PROFILES, profile
from toolkit.errors import InputError, did_you_mean
from toolkit.recipe.yaml_lines import KeyPath, parse_document
from toolkit.serving.lint.repository import Finding, Model, Repository
from toolkit.serving.llmapi.contract import SECTION, SETTINGS, YAML
from toolkit.serving.llmapi.model_yaml import DRAFT_KEYS

PROGRAM = "llmapi"
# Read by LLM() and by nobody's profile, because a recipe says them elsewhere or never.
_MORE_KEYS = {
    "model", "tokenizer", "tokenizer_mode", "backend", "trust_remote_code", "gpus_per_node",
    "skip_tokenizer_init", "enable_lora", "lora_config", "logits_post_processors",
    "moe_tensor_parallel_size", "moe_cluster_parallel_size",
}  # fmt: skip
_SIZES = ("tensor_parallel_size", "pipeline_parallel_size")


@dataclass(frozen=True)
class _Yaml:
    """One model.yaml that parsed."""

    model: Model
    file: str
    data: Mapping[str, Any]
    lines: Mapping[KeyPath, int]
    release: str  # "": nobody says

    def error(self, message: str, *path: str) -> Finding:
        return Finding("error", self.file, message, self.lines.get(path))

    def warning(self, message: str, *path: str) -> Finding:
        return Finding("warning", self.file, message, self.lines.get(path))

    @property
    def settings(self) -> Mapping[str, Any]:
        found = self.data.get(SECTION)
        return found if isinstance(found, dict) else {}

    @property
    def ranks(self) -> int | None:
        """Of one instance; None where that is no number, which another rule says."""
        sizes = [self.data.get(name, 1) for name in _SIZES]
        return sizes[0] * sizes[1] if all(map(_is_count, sizes)) else None


def check_llmapi(repository: Repository) -> Iterator[Finding]:
    for model in repository.parsed:
        for version in model.versions:
            path = model.directory / str(version) / YAML
            if path.is_file():
                yield from _check_file(repository, model, path)
            elif model.program == PROGRAM:
                file = path.relative_to(repository.directory).as_posix()
                yield Finding("error", file, "missing; it says what LLM() is called with")


def _check_file(repository: Repository, model: Model, path: Path) -> Iterator[Finding]:
    file = path.relative_to(repository.directory).as_posix()
    try:
        document = parse_document(path.read_text(encoding="utf-8"), file, what=YAML)
    except (OSError, UnicodeDecodeError) as error:
        yield Finding("error", file, f"not readable: {error}")
        return
    except InputError as error:
        yield Finding("error", file, str(error).removeprefix(f"{file}: "))
        return
    for problem in document.problems:
        yield Finding("error", file, problem.text, problem.where.line if problem.where else None)
    lines = {path: where.line for path, where in document.where.items()}
    found = _Yaml(model, file, document.data, lines, _release(repository, model))
    for rule in (_settings, _decoupled, _arguments, _instances, _speculation, _draft):
        yield from rule(found)


def _release(repository: Repository, model: Model) -> str:
    recipe = (repository.manifest or {}).get("recipe") or {}
    return model.parameters.get("tensorrt_llm_release") or str(recipe.get("tensorrt_llm") or "")


def _settings(found: _Yaml) -> Iterator[Finding]:
    if not isinstance(found.data.get(SECTION), dict):
        yield found.error(f"no section {SECTION}: max_batch_size: 0, decoupled: true or false")
        return
    for name in found.settings:
        if name not in SETTINGS:
            hint = did_you_mean(name, SETTINGS)
            yield found.error(f"{SECTION}.{name}: nobody reads it{hint}", SECTION, name)
    for name, required in SETTINGS.items():
        if required and name not in found.settings:
            yield found.error(f"{SECTION}.{name} is missing", SECTION)
    for name in ("cancellation_check_period_ms", "max_queue_size"):
        value = found.settings.get(name, 1)
        if not _is_count(value):
            yield found.error(f"{SECTION}.{name}: {value!r}, expected 1 or more", SECTION, name)
    size = found.settings.get("max_batch_size", 0)
    if size != 0:
        yield found.error(
            f"{SECTION}.max_batch_size: {size!r}, but only 0 works: the LLM API batches itself",
            SECTION,
            "max_batch_size",
        )
    if found.model.config.max_batch_size:
        yield found.model.error(
            f"max_batch_size: {found.model.config.max_batch_size}, but only 0 works: the LLM API "
            "batches itself"
        )


def _decoupled(found: _Yaml) -> Iterator[Finding]:
    said = found.settings.get("decoupled", False)
    if not isinstance(said, bool):
        yield found.error(
            f"{SECTION}.decoupled: {said!r}, expected true or false", SECTION, "decoupled"
        )
        return
    inside = found.model.config.model_transaction_policy.decoupled
    if said != inside:
        say = found.error if said or found.model.ours else found.warning
        yield say(
            f"{SECTION}.decoupled: {str(said).lower()}, but config.pbtxt says "
            f"{str(inside).lower()}, which counts with --disable-auto-complete-config (what "
            "upstream's launcher passes): write model_transaction_policy there too",
            SECTION,
            "decoupled",
        )
    if not (said or inside or found.model.ours):
        yield found.warning(
            "requests with streaming: true are refused; decoupled: true allows them",
            SECTION,
            "decoupled",
        )


def _arguments(found: _Yaml) -> Iterator[Finding]:
    known = _profiles(found.release)
    keys = set().union(*(entry.llm_keys for entry in known)) | _MORE_KEYS
    if not found.data.get("model"):
        yield found.error("no model: a directory or a hub id")
    elif (path := Path(str(found.data["model"]))).is_absolute() and not path.is_dir():
        yield found.warning(f"model: {path} is not on this machine", "model")
    for name in found.data:
        if name in keys or name == SECTION:
            continue
        hint = did_you_mean(name, keys)
        say = found.error if hint else found.warning
        yield say(f"{name}: not a key of LLM() that spectool knows{hint}", name)
    for name in _SIZES:
        value = found.data.get(name, 1)
        if not _is_count(value):
            yield found.error(f"{name}: {value!r}, expected 1 or more", name)
    yield from _fraction(found)


def _fraction(found: _Yaml) -> Iterator[Finding]:
    memory = found.data.get("kv_cache_config")
    fraction = memory.get("free_gpu_memory_fraction", 0.9) if isinstance(memory, dict) else 0.9
    if not isinstance(fraction, (int, float)) or not 0 < fraction < 1:
        yield found.error(
            f"kv_cache_config.free_gpu_memory_fraction: {fraction!r}, expected a number above 0 "
            "and below 1",
            "kv_cache_config",
        )


def _instances(found: _Yaml) -> Iterator[Finding]:
    name, model = "gpu_device_ids", found.model
    text = model.parameters.get(name, "")
    count = sum(group.count or 1 for group in model.config.instance_group) or 1
    if not text:
        if count > 1:
            yield model.error(f"instance_group: {count} instances need parameter {name!r}")
        return
    groups = [[gpu.strip() for gpu in group.split(",")] for group in text.split(";")]
    if len(groups) != count:
        yield model.error(
            f"parameter {name!r}: GPUs for {len(groups)} instance(s), instance_group has {count}",
            name,
        )
    for group in groups:
        if found.ranks and len(group) != found.ranks:
            yield model.error(
                f"parameter {name!r}: {len(group)} GPU(s) for an instance of {found.ranks} rank(s)",
                name,
            )
    every = [gpu for group in groups for gpu in group]
    if len(set(every)) != len(every):
        yield model.error(f"parameter {name!r}: a GPU twice", name)


def _speculation(found: _Yaml) -> Iterator[Finding]:
    """By the rules of the release; without one, by those of any that would take it."""
    config = found.data.get("speculative_config")
    if config is None:
        return
    if not isinstance(config, dict):
        yield found.error("speculative_config: expected keys and values", "speculative_config")
        return
    verdicts = [judge(entry, config) for entry in _profiles(found.release)]
    if any(verdict.accepted for verdict in verdicts):
        return
    for key, text in verdicts[0].problems:
        path = ("speculative_config", key) if key in config else ("speculative_config",)
        yield found.error(f"speculative_config.{key}: {text}", *path)


def _draft(found: _Yaml) -> Iterator[Finding]:
    config = found.data.get("speculative_config")
    if not isinstance(config, dict):
        return
    for key in DRAFT_KEYS:
        place = str(config.get(key) or "")
        if not place.startswith(("/", "./")):
            continue  # a hub id, or none
        if place.startswith("./") and not found.model.ours:
            yield found.error(
                f"speculative_config.{key}: {place!r} starts wherever the server is started; write "
                "an absolute path",
                "speculative_config",
                key,
            )
        elif not (found.model.directory / place / "config.json").is_file():
            yield found.error(
                f"speculative_config.{key}: no config.json in {found.model.directory / place}",
                "speculative_config",
                key,
            )


def _profiles(release: str) -> list[Profile]:
    try:
        return [profile(release)] if release else list(reversed(PROFILES))
    except InputError:
        return list(reversed(PROFILES))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
