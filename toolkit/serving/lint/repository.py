"""A model repository as lint sees it: directories, texts, parsed configs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from toolkit.errors import did_you_mean
from toolkit.recipe.release import Release, release
from toolkit.serving.contract import CONTRACTS, TENSORRT_LLM, Contract
from toolkit.serving.llmapi.contract import llmapi_contract
from toolkit.serving.pbtxt import ModelConfig, dtype_name, parameters_of, parse
from toolkit.serving.repository import repository_manifest
from toolkit.serving.tensorrt.tensors import engine_contract, ensemble_contract

CONFIG = "config.pbtxt"
BACKEND = "tensorrtllm"  # TensorRT-LLM's own, which needs no model code
_LARGEST_CONFIG = 4 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and where."""

    level: Literal["error", "warning"]
    file: str  # relative to the repository
    message: str
    line: int | None = None
    column: int | None = None
    rule: str = "config"

    def __str__(self) -> str:
        place = ":".join(str(p) for p in (self.file, self.line, self.column) if p is not None)
        return f"{self.level}: {place}: {self.message}"

    def to_json(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "rule": self.rule,
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "message": self.message,
        }


@dataclass(frozen=True)
class Model:
    """One model whose config parsed."""

    directory: Path
    text: str
    config: ModelConfig

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def parameters(self) -> dict[str, str]:
        """Empty and left over `${placeholders}` count as unset."""
        found = parameters_of(self.config)
        return {k: v for k, v in found.items() if v and not v.startswith("${")}

    @property
    def code(self) -> Path | None:
        """model.py of the newest version."""
        versions = [v for v in self.versions if (self.directory / str(v) / "model.py").is_file()]
        return self.directory / str(max(versions)) / "model.py" if versions else None

    @property
    def versions(self) -> list[int]:
        return [
            int(path.name)
            for path in self.directory.iterdir()
            if path.is_dir() and path.name.isascii() and path.name.isdigit()
        ]

    @property
    def ours(self) -> bool:
        """Whether the code is spectool's, so that our contract is its contract."""
        return self.program is not None

    @property
    def program(self) -> str | None:
        """Which of spectool's models it is; None for other people's code."""
        if self.code is None:
            return None
        text = self.code.read_text(encoding="utf-8", errors="replace")
        found = re.search(r"toolkit\.serving\.models\.(\w+)", text)
        return found[1] if found else None

    def error(self, message: str, near: str | None = None) -> Finding:
        return Finding("error", f"{self.name}/{CONFIG}", message, self.line(near))

    def warning(self, message: str, near: str | None = None) -> Finding:
        return Finding("warning", f"{self.name}/{CONFIG}", message, self.line(near))

    def line(self, near: str | None) -> int | None:
        """The first line with this name in quotes."""
        if near is None:
            return None
        lines = enumerate(self.text.splitlines(), 1)
        return next((number for number, line in lines if f'"{near}"' in line), None)


@dataclass(frozen=True)
class Repository:
    """All models of a directory; `models` has None where a config did not parse."""

    directory: Path
    models: dict[str, Model | None]
    manifest: dict[str, Any] | None

    @property
    def parsed(self) -> list[Model]:
        return [model for model in self.models.values() if model]

    @property
    def release(self) -> Release | None:
        """Of the TensorRT-LLM engines that it was written for; None: not for engines."""
        recipe = (self.manifest or {}).get("recipe") or {}
        if recipe.get("backend") != "tensorrt":
            return None
        return release(str(recipe.get("tensorrt_llm")))

    def role(self, model: Model) -> str:
        """Of a model that runs one engine, as the manifest has it."""
        return str(
            ((self.manifest or {}).get("models", {}).get(model.name) or {}).get("role") or ""
        )

    def contract(self, model: Model) -> Contract | None:
        """What a model of ours has to look like; None for other people's models."""
        listed = (self.manifest or {}).get("models", {})
        if not (model.ours or (model.code is None and model.name in listed)):
            return None
        if self.release and model.config.backend == BACKEND:
            return engine_contract(self.release, **_chosen(model))
        if self.release and model.config.platform == "ensemble":
            names = {tensor.name for tensor in model.config.input}
            return ensemble_contract(self.release, streams="stream" in names)
        if model.program == "llmapi":
            return llmapi_contract(decoupled=model.config.model_transaction_policy.decoupled)
        if model.name in CONTRACTS:
            return CONTRACTS[model.name]
        return TENSORRT_LLM if "gpt_model_path" in model.parameters else None

    def unknown(self, name: str) -> str:
        """The end of a sentence about a model that is not there."""
        return f"there is no model {name!r}{did_you_mean(name, self.models)}"


def _chosen(model: Model) -> dict[str, Any]:
    """What a config of an engine may say either way."""
    logits = [t.data_type for t in model.config.input if t.name == "draft_logits"]
    half = bool(logits) and dtype_name(logits[0]) == "FP16"
    return {
        "decoupled": model.config.model_transaction_policy.decoupled,
        "logits": "FP16" if half else "FP32",
    }


def read_repository(directory: Path) -> tuple[Repository, list[Finding]]:
    """Every directory is a model to Triton, but for hidden ones."""
    findings: list[Finding] = []
    models: dict[str, Model | None] = {}
    for path in sorted(directory.iterdir()):
        if path.is_dir() and not path.name.startswith("."):
            models[path.name] = _read_model(path, findings)
    if not models:
        findings.append(Finding("error", ".", "no model directories here"))
    return Repository(directory, models, repository_manifest(directory)), findings


def _read_model(directory: Path, findings: list[Finding]) -> Model | None:
    from google.protobuf.text_format import ParseError

    file = f"{directory.name}/{CONFIG}"
    path = directory / CONFIG
    try:
        if path.stat().st_size > _LARGEST_CONFIG:
            raise ValueError(f"more than {_LARGEST_CONFIG >> 20} MiB, so not a model's config")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        findings.append(Finding("error", file, "missing; every model directory needs one"))
        return None
    except (OSError, ValueError) as error:  # UnicodeDecodeError is a ValueError
        findings.append(Finding("error", file, f"not readable: {error}"))
        return None
    findings += _placeholders(file, text)
    try:
        return Model(directory, text, parse(text))
    except ParseError as error:
        message = str(error).partition(" : ")[2] or str(error)
        findings.append(Finding("error", file, message, error.GetLine(), error.GetColumn()))
        return None


def _placeholders(file: str, text: str) -> list[Finding]:
    """Errors, but for whole values of parameters: their readers take `"${x}"` for unset."""
    lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if "${" in line]
    unset = [(n, line) for n, line in lines if re.search(r'string_value: *"\$\{\w+\}"', line)]
    found = [
        Finding("error", file, f"left over {_placeholder(line)}", number, line.index("${") + 1)
        for number, line in lines
        if (number, line) not in unset
    ]
    if unset:
        names = ", ".join(_placeholder(line) for _, line in unset)
        number, line = unset[0]
        column = line.index("${") + 1
        found.append(Finding("warning", file, f"left over {names}: unset", number, column))
    return found


def _placeholder(line: str) -> str:
    start = line.index("${")
    end = line.find("}", start)
    return line[start : end + 1] if end >= 0 else line[start:]
