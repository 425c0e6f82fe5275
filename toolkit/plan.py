"""From a recipe to the artefacts that it needs: their digests, their order, what is there already.

Nothing runs and nothing is fetched here. A digest is taken over everything that changes the bytes;
it stays unknown (None) for as long as only the network could tell which weights a name means.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from toolkit.backends.interfaces import Backend, LoadingBackend
from toolkit.bundled import located
from toolkit.checkpoint.convert import CONVERTER_VERSION
from toolkit.checkpoint.heads.head import HeadSpec, head_of, heads_form
from toolkit.checkpoint.heads.source import head_files_identity, heads_identity
from toolkit.checkpoint.model_tokenizer import tokenizer_identity
from toolkit.checkpoint.quantization import needs_elsewhere
from toolkit.checkpoint.source import kind_of, source_identity
from toolkit.checkpoint.tokenizer import TOKENIZER_VERSION
from toolkit.engine.near_miss import near_misses
from toolkit.errors import InputError
from toolkit.recipe.schema import HeadSource, ModelSpec, Recipe
from toolkit.registry import BACKENDS
from toolkit.store import Store, digest

Kind = Literal["checkpoints", "tokenizers", "engines"]


@dataclass(frozen=True)
class Artefact:
    """One directory to make: from which model and other artefacts, and whether it is there."""

    kind: Kind
    roles: tuple[str, ...]  # several when models of the recipe are the same
    model: ModelSpec
    spec: dict[str, Any] | None  # what the digest is taken over
    digest: str | None
    inputs: tuple[str, ...]  # digests of the artefacts that it is made from
    command: str
    path: Path | None
    cached: bool
    heads: HeadSpec | None = None  # drafting heads that go into this checkpoint
    notes: tuple[str, ...] = ()
    near_misses: tuple[str, ...] = ()  # engines in the store that another machine built

    @property
    def role(self) -> str:
        return "+".join(self.roles)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "roles": list(self.roles),
            "digest": self.digest,
            "inputs": list(self.inputs),
            "cached": self.cached,
            "command": self.command,
            "path": str(self.path) if self.path else None,
            "notes": list(self.notes),
            "near_misses": list(self.near_misses),
            "spec": self.spec,
        }


@dataclass(frozen=True)
class Plan:
    """Every artefact of a recipe, inputs before what is made from them."""

    recipe: Recipe
    artefacts: tuple[Artefact, ...]

    @property
    def complete(self) -> bool:
        """Whether every digest is known without fetching anything."""
        return all(artefact.digest for artefact in self.artefacts)

    @property
    def digest(self) -> str:
        """One digest of all that a build would make, for pipelines.

        What only the network or the building machine could tell counts by its command.
        """
        made = [[a.kind, list(a.roles), a.digest or a.command] for a in self.artefacts]
        elsewhere = [self.recipe.tensorrt_llm, self.recipe.tensorrt.gpu]
        return digest({"artefacts": made, "machine": None if self.complete else elsewhere})

    def to_json(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe.model_dump(mode="json"),
            "digest": self.digest,
            "artefacts": [artefact.to_json() for artefact in self.artefacts],
        }


def make_plan(recipe: Recipe, store: Store, machine: Mapping[str, Any] | None = None) -> Plan:
    """What `build` would make or find, without running or fetching any of it.

    `machine` is what the backend says of the machine that will build, where that is another one.
    """
    planner = _Planner(recipe, store, machine)
    made: dict[tuple[str, str], Artefact] = {}
    for artefact in planner.artefacts():
        same = (artefact.kind, artefact.digest or artefact.command)
        made[same] = _shared(made[same], artefact.role) if same in made else artefact
    planner.refuse_problems()
    order = ("checkpoints", "tokenizers", "engines")
    return Plan(recipe, tuple(sorted(made.values(), key=lambda a: order.index(a.kind))))


def _shared(artefact: Artefact, role: str) -> Artefact:
    return Artefact(**{**vars(artefact), "roles": (*artefact.roles, role)})


class _Planner:
    """Identities are asked for once per source; problems are collected over all models."""

    def __init__(
        self, recipe: Recipe, store: Store, machine: Mapping[str, Any] | None = None
    ) -> None:
        self.recipe = recipe
        self.machine = machine
        self.store = store
        self.backend: type[Backend] = BACKENDS[recipe.backend]
        self.identities: dict[tuple[str, str | None], dict[str, Any] | None] = {}
        self.problems: dict[str, None] = {}

    def artefacts(self) -> Iterator[Artefact]:
        if issubclass(self.backend, LoadingBackend):
            yield from self._deployment(self.backend)
            return
        checkpoints = {}
        for role, model in self.recipe.models().items():
            for artefact in self._artefacts_of(role, model):
                if artefact.kind == "checkpoints":
                    checkpoints[role] = artefact.digest
                yield artefact
        if heads := self.backend.engine_heads(self.recipe):
            yield self._head_engine(heads, checkpoints["target"])

    def _head_engine(self, heads: HeadSource, target: str | None) -> Artefact:
        """Drafting heads as an engine of their own, made from their files and the target's."""
        recipe, spec = self.recipe, None
        try:
            source = head_files_identity(heads.checkpoint, heads.revision, self.store)
        except InputError as error:
            self.problems[str(error)] = None
            source = None
        if source and target:
            engine = self.backend.engine_spec(target, recipe, "heads", self.machine)
            spec = engine and {**engine, "heads": source}
        model = ModelSpec(checkpoint=located(heads.checkpoint), revision=heads.revision)
        return self._artefact("engines", "heads", model, spec, (target,) if target else ())

    def _deployment(self, backend: type[LoadingBackend]) -> Iterator[Artefact]:
        """Nothing is converted: the draft as it is loaded, and the directory with it."""
        recipe = self.recipe
        try:
            draft, spec = backend.draft_model(recipe), backend.draft_spec(recipe, self.store)
            tokenizer = backend.tokenizer_spec(recipe, self.store)
        except InputError as error:
            self.problems[str(error)] = None
            return
        inputs: tuple[str, ...] = ()
        if draft:
            step = backend.draft_command(recipe)
            checkpoint = self._artefact("checkpoints", "draft", draft, spec, (), step=step)
            inputs = (checkpoint.digest,) if checkpoint.digest else ()
            yield checkpoint
        if tokenizer:
            yield self._artefact("tokenizers", "target", recipe.target, tokenizer, ())
        known = not draft or inputs
        engine = backend.engine_spec(inputs[0] if inputs else "", recipe, "target", self.machine)
        yield self._artefact("engines", "target", recipe.target, engine if known else None, inputs)

    def _artefacts_of(self, role: str, model: ModelSpec) -> Iterator[Artefact]:
        identity = self._identity(model)
        heads = head_of(self.recipe) if role == "target" else None
        spec = identity and checkpoint_spec(identity, model)
        if spec and heads:
            found = self._heads_identity(heads)
            spec = found and {**spec, "heads": {"source": found, **heads_form(heads)}}
        checkpoint = self._artefact("checkpoints", role, model, spec, (), heads)
        yield checkpoint
        said = self._tokenizer_identity(model)
        tokenizer = said and {"source": said, "tokenizer_version": TOKENIZER_VERSION}
        yield self._artefact("tokenizers", role, model, tokenizer, ())
        engine = None
        if checkpoint.digest:
            engine = self.backend.engine_spec(checkpoint.digest, self.recipe, role, self.machine)
        yield self._artefact(
            "engines", role, model, engine, (checkpoint.digest,) if checkpoint.digest else ()
        )

    def refuse_problems(self) -> None:
        if self.problems:
            raise InputError("\n".join(self.problems))

    def _identity(self, model: ModelSpec) -> dict[str, Any] | None:
        key = (model.checkpoint, model.revision)
        if key not in self.identities:
            self.identities[key] = None
            try:
                self.identities[key] = source_identity(*key, store=self.store)
            except InputError as error:
                self.problems[str(error)] = None
        return self.identities[key]

    def _tokenizer_identity(self, model: ModelSpec) -> dict[str, Any] | None:
        if model.tokenizer is None and not self._is_ready(model):
            return self._identity(model)
        try:
            return tokenizer_identity(model, self.store)
        except InputError as error:
            self.problems[str(error)] = None
            return None

    def _is_ready(self, model: ModelSpec) -> bool:
        try:
            return kind_of(model.checkpoint) == "ready"
        except InputError as error:
            self.problems[str(error)] = None
            return False

    def _notes(self, kind: Kind, role: str, model: ModelSpec) -> tuple[str, ...]:
        if kind == "engines":
            return self.backend.engine_notes(self.recipe, role)
        if kind != "checkpoints" or self._is_ready(model):
            return ()
        elsewhere = needs_elsewhere(model)
        return (
            (f"{role}: quantization {model.quantization} needs {elsewhere}",) if elsewhere else ()
        )

    def _near_misses(self, spec: dict[str, Any] | None) -> tuple[str, ...]:
        """Why what the store holds of this engine does not do."""
        machine = self.backend.machine() if self.machine is None else self.machine
        if spec is None or not machine:
            return ()
        return tuple(map(str, near_misses(self._engines, spec, machine)))

    @cached_property
    def _engines(self) -> list[dict[str, Any]]:
        return [entry for entry in self.store.entries() if entry["kind"] == "engines"]

    def _heads_identity(self, heads: HeadSpec) -> dict[str, Any] | None:
        try:
            return heads_identity(heads, store=self.store)
        except InputError as error:
            self.problems[str(error)] = None
            return None

    def _artefact(
        self,
        kind: Kind,
        role: str,
        model: ModelSpec,
        spec: dict[str, Any] | None,
        inputs: tuple[str, ...],
        heads: HeadSpec | None = None,
        step: str | None = None,
    ) -> Artefact:
        spec = {"kind": kind, **spec} if spec else None
        key = digest(spec) if spec else None
        cached = bool(key) and self.store.has(kind, str(key))
        return Artefact(
            kind=kind,
            roles=(role,),
            model=model,
            spec=spec,
            digest=key,
            inputs=inputs,
            command=step
            or (
                self.backend.engine_command(self.recipe, role)
                if kind == "engines"
                else _command(kind, role, model, heads)
            ),
            path=self.store.path(kind, key) if key else None,
            cached=cached,
            heads=heads,
            notes=self._notes(kind, role, model),
            near_misses=self._near_misses(spec) if kind == "engines" and not cached else (),
        )


def checkpoint_spec(identity: dict[str, Any], model: ModelSpec) -> dict[str, Any]:
    """What changes the bytes of a converted checkpoint; `identity` already stands for the name."""
    form = model.model_dump(mode="json", include={"dtype", "quantization", "parallel", "layers"})
    return {"source": identity, **form, "converter_version": CONVERTER_VERSION}


def _command(kind: Kind, role: str, model: ModelSpec, heads: HeadSpec | None) -> str:
    """The command or step that makes the artefact by itself, below the current directory."""
    if heads:
        fields = " ".join(f"{name}={value}" for name, value in heads.fields.items())
        return (
            f"convert {model.checkpoint} with {heads.kind} heads {heads.checkpoint} -> "
            f"{kind}/{role} {fields}"
        )
    place = model.tokenizer if kind == "tokenizers" and model.tokenizer else None
    words = ["spectool", "convert", place or model.checkpoint, "-o", f"{kind}/{role}"]
    words += ["--revision", model.revision] if model.revision and not place else []
    if kind == "tokenizers":
        return shlex.join([*words, "--tokenizer-only"])
    words += ["--dtype", model.dtype]
    words += ["--tp", str(model.parallel.tp), "--pp", str(model.parallel.pp)]
    words += ["--quantization", model.quantization] if model.quantization else []
    words += ["--layers", ",".join(map(str, model.layers))] if model.layers else []
    return shlex.join(words)
