"""Deploy recipes on TensorRT-LLM's PyTorch backend, which loads Hugging Face checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.backends.interfaces import DEFAULT_CACHE, CacheOptions, LoadingBackend
from toolkit.checkpoint.drafts.eagle3 import Eagle3Form
from toolkit.checkpoint.drafts.kinds import reduced_vocabulary_problem, refuse_head_as_model
from toolkit.checkpoint.drafts.target import target_facts
from toolkit.checkpoint.drafts.write import PREPARED_VERSION, prepare_eagle3
from toolkit.checkpoint.hashes import content_hashes
from toolkit.checkpoint.heads.source import head_files_identity, open_head_files
from toolkit.checkpoint.small_files import open_small_files, small_files_here
from toolkit.checkpoint.tokenizer import TOKENIZER_VERSION, write_tokenizer
from toolkit.engine.llmapi.deployment import (
    deployment_spec,
    read_llm_args,
    write_deployment,
)
from toolkit.engine.llmapi.notes import recipe_notes
from toolkit.engine.llmapi.profiles import RELEASES
from toolkit.errors import CheckpointError
from toolkit.recipe.release import Release, release
from toolkit.recipe.schema import EngineLimits, HeadSource, ModelSpec, Recipe
from toolkit.registry import DRAFTERS
from toolkit.store import Store

if TYPE_CHECKING:
    from toolkit.backends.runtime import Runtime
    from toolkit.checkpoint.tokenizer import Tokenizer
    from toolkit.engine.built import BuiltModels


class PytorchBackend(LoadingBackend):
    """A deployment is text and perhaps a draft: it can be built on any machine."""

    builds_elsewhere = True
    connects = True
    releases = RELEASES

    @staticmethod
    def unavailable() -> str | None:
        if find_spec("tensorrt_llm") is None:
            return (
                "'pytorch' builds deployments here; they run where tensorrt_llm is, which is not "
                "installed"
            )
        return None

    @staticmethod
    def require(recipe: Recipe) -> None:
        """Nothing: running needs TensorRT-LLM, building does not."""

    @staticmethod
    def untunable(recipe: Recipe) -> str | None:
        return (
            "a deployment always drafts as it was started; start one for each "
            "speculation.max_draft_len and one with drafter: none, and name them all "
            "(tune --url 0=URL --url 3=URL)"
        )

    @staticmethod
    def check(config: Mapping[str, Any], limits: EngineLimits, where: str) -> None:
        """Any model that TensorRT-LLM loads; the rules of engine/llmapi look at the rest."""

    @staticmethod
    def engine_spec(
        checkpoint_digest: str, recipe: Recipe, role: str, machine: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        return deployment_spec(recipe, checkpoint_digest or None)

    @staticmethod
    def builder(recipe: Recipe) -> Mapping[str, str]:
        return {"tensorrt_llm": recipe.tensorrt_llm}

    @staticmethod
    def gpus(recipe: Recipe, role: str) -> int:
        return recipe.target.parallel.tp * recipe.target.parallel.pp

    @staticmethod
    def engine_command(recipe: Recipe, role: str) -> str:
        return (
            f"write the deployment for TensorRT-LLM {recipe.tensorrt_llm} -> engines/{role}: "
            "llm_args.yaml serve.sh bench.sh probe.py"
        )

    @staticmethod
    def engine_notes(recipe: Recipe, role: str) -> tuple[str, ...]:
        return tuple(recipe_notes(recipe))

    @staticmethod
    def draft_model(recipe: Recipe) -> ModelSpec | None:
        head = _head(recipe)
        if head is None:
            return None
        return ModelSpec(checkpoint=head.checkpoint, revision=head.revision)

    @staticmethod
    def draft_command(recipe: Recipe) -> str:
        head = _head(recipe)
        where = head.checkpoint if head else ""
        return f"rewrite the EAGLE-3 head {where} as TensorRT-LLM loads it -> checkpoints/draft"

    @staticmethod
    def draft_spec(recipe: Recipe, store: Store) -> dict[str, Any] | None:
        head, target = _head(recipe), recipe.target
        if head is None:
            return None
        identity = head_files_identity(head.checkpoint, head.revision, store)
        known = small_files_here(target.checkpoint, target.revision)
        if identity is None or known is None:
            return None
        facts = target_facts(known.config, target.checkpoint)
        return {
            "source": identity,
            "target": {
                "hidden": facts.hidden,
                "vocab": facts.vocab,
                "layers": facts.layers,
            },
            "release": list(_release(recipe)),
            "prepared_version": PREPARED_VERSION,
        }

    @staticmethod
    def tokenizer_spec(recipe: Recipe, store: Store) -> dict[str, Any] | None:
        target = recipe.target
        found = small_files_here(target.checkpoint, target.revision)
        if found is None or not found.has_tokenizer:
            return None
        hashes = content_hashes(found.files, store.root)
        return {"source": {"files": hashes}, "tokenizer_version": TOKENIZER_VERSION}

    @staticmethod
    def fetch(recipe: Recipe, *, offline: bool | None) -> None:
        head = _head(recipe)
        if head is not None:
            open_small_files(recipe.target.checkpoint, recipe.target.revision, offline=offline)
            open_head_files(head.checkpoint, head.revision, offline=offline)

    @staticmethod
    def write_draft(recipe: Recipe, out: Path, *, offline: bool | None) -> None:
        head, target = _head(recipe), recipe.target
        assert head
        config = open_small_files(target.checkpoint, target.revision, offline=offline).config
        heads = open_head_files(head.checkpoint, head.revision, offline=offline)
        facts = target_facts(config, target.checkpoint)
        prepare_eagle3(heads, facts, out, Eagle3Form(release=_release(recipe)))

    @staticmethod
    def write_tokenizer(recipe: Recipe, out: Path) -> None:
        target = recipe.target
        write_tokenizer(open_small_files(target.checkpoint, target.revision, offline=True), out)

    @staticmethod
    def write_deployment(recipe: Recipe, draft: Path | None, out: Path) -> None:
        _refuse_draft(recipe)
        write_deployment(recipe, out, draft)

    def open(
        self,
        built: BuiltModels,
        tokenizer: Tokenizer,
        *,
        threads: int | None,
        cache: CacheOptions = DEFAULT_CACHE,
    ) -> Runtime:
        from toolkit.backends.llmapi_runtime import open_llm

        args = read_llm_args(built.engines["target"], built.recipe)
        return open_llm(built.recipe, args, tokenizer)

    def connect(self, built: BuiltModels, tokenizer: Tokenizer, url: str) -> Runtime:
        from toolkit.backends.llmapi_runtime import open_endpoint

        return open_endpoint(built.recipe, url, tokenizer)


def _head(recipe: Recipe) -> HeadSource | None:
    """The drafting head that is rewritten; a whole draft model is loaded from where it lies."""
    draft = DRAFTERS[recipe.speculation.drafter].llmapi_draft(recipe.speculation)
    return draft.source if draft and draft.kind == "eagle3" else None


def _refuse_draft(recipe: Recipe) -> None:
    """A draft model is not converted, so nothing else would look at one that is on this disk."""
    draft = DRAFTERS[recipe.speculation.drafter].llmapi_draft(recipe.speculation)
    if draft is None or draft.kind == "eagle3":
        return
    if found := small_files_here(draft.source.checkpoint, draft.source.revision):
        refuse_head_as_model(draft.source.checkpoint, draft.source.revision, offline=True)
        if problem := reduced_vocabulary_problem(found.config):
            raise CheckpointError(draft.source.checkpoint, [problem])


def _release(recipe: Recipe) -> Release:
    return release(recipe.tensorrt_llm) or (1, 2)
