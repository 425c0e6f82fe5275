"""Builds what a check looks at: one recipe and the directories that it names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests import tiny_heads as heads
from tests.tiny import hf_config, hf_tensors, write_checkpoint

GOLDEN = Path(__file__).parents[1] / "golden"
LIMITS = {"max_batch_size": 4, "max_input_len": 128, "max_seq_len": 200}
TREE = [[0], [0, 0], [1]]


class Lab:
    """Everything below one folder; methods that change a part of it can be chained."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data: dict[str, Any] = {
            "name": "lab",
            "backend": "tensorrt",
            "tensorrt_llm": "1.2.1",
            "target": {"checkpoint": "./target", "dtype": "float16"},
            "speculation": {"drafter": "ngram", "max_draft_len": 10},
            "engine": dict(LIMITS),
        }
        self.arguments: list[str] = []

    def path(self) -> Path:
        """The recipe's file; the target is made when nothing else made it."""
        if not (self.folder / "target").exists():
            self.model("target")
        path = self.folder / "recipe.yaml"
        path.write_text(json.dumps(self.data), encoding="utf-8")  # JSON is YAML
        return path

    def set(self, dotted: str, value: Any) -> Lab:
        *sections, key = dotted.split(".")
        holder = self.data
        for section in sections:
            holder = holder.setdefault(section, {})
        holder[key] = value
        return self

    def model(self, role: str, family: str = "llama", **changes: Any) -> Lab:
        write_checkpoint(self.folder / role, family, **changes)
        return self

    def tensors(self, role: str, change: Any) -> Lab:
        """A Llama whose tensors `change` has edited."""
        config = hf_config("llama")
        found = hf_tensors(config)
        change(found)
        write_checkpoint(self.folder / role, tensors=found)
        return self

    def draft(self, family: str = "llama", **changes: Any) -> Lab:
        self.model("draft", family, seed=1, **changes)
        self.data["speculation"] = {
            "drafter": "draft_target",
            "max_draft_len": 10,
            "draft": {"checkpoint": "./draft", "dtype": "float16"},
        }
        return self

    def medusa(self, tensors: Mapping[str, Any] | None = None, **options: Any) -> Lab:
        given = heads.medusa() if tensors is None else tensors
        heads.write_heads(self.folder / "heads", given, {}, "medusa_lm_head.safetensors")
        options.setdefault("medusa_choices", TREE)
        return self.named_heads("medusa", **options)

    def eagle(
        self,
        tensors: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Lab:
        given = heads.eagle() if tensors is None else tensors
        heads.write_heads(self.folder / "heads", given, config or heads.eagle_config())
        return self.named_heads("eagle", **options)

    def redrafter(self, **sizes: Any) -> Lab:
        exit_dim = sizes.get("exit_dim", 128)
        heads.write_heads(
            self.folder / "heads",
            heads.redrafter(exit_dim=exit_dim),
            heads.redrafter_config(**sizes),
        )
        return self.named_heads("redrafter")

    def named_heads(self, drafter: str, **options: Any) -> Lab:
        """The section of the recipe only."""
        self.data["speculation"] = {
            "drafter": drafter,
            "heads": {"checkpoint": "./heads"},
            **options,
        }
        return self

    def engine(self, golden: str, role: str = "target", change: Any = None) -> Lab:
        """An engine directory as TensorRT-LLM's own front end wrote it, then edited."""
        found = json.loads((GOLDEN / f"{golden}.json").read_text())
        directory = self.folder / "engines" / role
        directory.mkdir(parents=True)
        if change:
            change(found["config"])
        (directory / "config.json").write_text(json.dumps(found["config"]), encoding="utf-8")
        for name in found["files"]:
            if name.endswith(".engine"):
                (directory / name).write_bytes(b"plan")
        self.arguments += ["--engine", f"{role}={directory}"]
        return self

    def with_options(self, *words: str) -> Lab:
        self.arguments += words
        return self
