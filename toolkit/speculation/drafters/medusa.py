"""Medusa (Cai et al. 2024): heads on the target's last hidden state draft a tree in one go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from toolkit.recipe.release import Release
from toolkit.recipe.schema import HeadSource, Recipe, Speculation
from toolkit.speculation.drafters.engine_only import EngineOnlyDrafter
from toolkit.speculation.drafters.feature_trace import captured_states
from toolkit.speculation.heads import ParallelHeads
from toolkit.speculation.interfaces import DraftRequest, LanguageModel, Proposal
from toolkit.speculation.migration import EAGLE3_COSTS, NGRAM_COSTS
from toolkit.speculation.sampling import confidence, likeliest
from toolkit.speculation.tensorrt import MODE, FieldPath, FlagValue
from toolkit.speculation.token_tree import parents_of
from toolkit.speculation.trace import UNRANKED, DraftTrace, TracedText
from toolkit.speculation.tree_trace import tree_trace, true_ranks
from toolkit.speculation.trees import Choice, Tree, fit_problems

Choices = Sequence[Choice]


class MedusaSpeculation(Speculation):
    """Heads trained for this very target; max_draft_len counts the nodes of the tree."""

    drafter: Literal["medusa"] = "medusa"
    max_draft_len: int = Field(63, ge=1, le=512, description="Nodes of the tree, at most.")
    heads: HeadSource
    num_medusa_heads: int | None = Field(
        None, ge=1, le=16, description="Use this many; null: as many as the weights hold."
    )
    medusa_choices: Tree = Field(
        Tree.model_validate("medusa/mc_sim_7b_63"), description="Paths, or the name of a tree."
    )

    posterior_threshold: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="Backend cpu: typical acceptance, lossy when sampling (Medusa's authors: "
        "0.09); null: exact.",
    )

    @property
    def max_depth(self) -> int:
        return self.medusa_choices.depth


class MedusaDrafter(EngineOnlyDrafter):
    """Every head reads the last state of the text: the whole tree comes from one small pass."""

    Options = MedusaSpeculation
    on_cpu = True
    reads_hidden = True
    has_confidence = True
    needs = "Medusa heads"
    nearest: ClassVar[Mapping[str, str]] = {
        "eagle3": f"{EAGLE3_COSTS}; Medusa heads cannot be turned into one",
        "ngram": NGRAM_COSTS,
    }
    # Heads stay in the target's dtype, and engines of a quantised target with plain heads fail.
    quantizations: ClassVar[frozenset[str] | None] = frozenset()

    def __init__(self, heads: ParallelHeads, target: LanguageModel, choices: Choices) -> None:
        self._heads = heads
        self._target = target
        self._choices = choices
        self._parents, self._places = parents_of(choices)
        self._states: dict[int, NDArray[np.float32]] = {}  # [H] after the last token read

    @classmethod
    def create(cls, options: Speculation, models: Mapping[str, Any]) -> MedusaDrafter:
        assert isinstance(options, MedusaSpeculation)
        return cls(models["heads"], models["target"], options.medusa_choices.choices)

    def observe(self, seq: int, hidden: NDArray[np.float32]) -> None:
        self._states[seq] = hidden[-1]

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        states = np.stack([self._states[request.seq] for request in requests])
        # Head h drafts the token h + 2 places after the last one read: the first of them is known,
        # it is the text's last token, and the target itself chose it.
        logits = self._heads.logits(states)  # [B, heads, D]
        return [self._tree(q, rows) for q, rows in zip(requests, logits, strict=True)]

    def _tree(self, request: DraftRequest, logits: NDArray[np.float32]) -> Proposal:
        """The choices, as deep as asked for and as the heads are sure."""
        depth = min(request.draft_len, len(logits))
        if request.confidence:
            sure = [confidence(row) >= request.confidence for row in logits[:depth]]
            depth = sure.index(False) if False in sure else depth
        count = sum(place[0] <= depth for place in self._places)  # levels come in order
        width = 1 + max((rank for _, rank in self._places), default=0)
        best = [self._heads.target_ids[likeliest(row, width)] for row in logits[:depth]]
        tokens = [int(best[level - 1][rank]) for level, rank in self._places[:count]]
        return Proposal(tokens, None, self._parents[:count])

    def end(self, seq: int) -> None:
        self._states.pop(seq, None)

    def trace(self, text: TracedText, depth: int, least: float | None = None) -> DraftTrace:
        """All heads in one pass over the text's states: head d ranks the token d + 1 further on."""
        tokens = np.array([*text.prompt, *text.output], dtype=np.int64)
        starts, first = len(text.output) - 1, len(text.prompt)
        states = captured_states(self._target, tokens[:-2])[first - 1 :]
        logits = self._heads.logits(states)  # [N, heads, D]
        found = np.full((starts, depth), UNRANKED)
        heads = min(depth, logits.shape[1])
        for d in range(min(heads, starts)):
            true = tokens[first + 1 + d :]
            found[: starts - d, d] = true_ranks(
                logits[: starts - d, d], self._heads.target_ids, true
            )
        trace = tree_trace(found, self._choices, logits.shape[1])
        if least is None:
            return trace
        sure = np.zeros((starts, depth))
        sure[:, :heads] = [[confidence(row) for row in rows] for rows in logits[:, :heads]]
        return replace(trace, sure=sure)

    @classmethod
    def posterior_threshold(cls, options: Speculation) -> float | None:
        assert isinstance(options, MedusaSpeculation)
        return options.posterior_threshold

    @classmethod
    def cpu_heads(cls, options: Speculation) -> HeadSource:
        assert isinstance(options, MedusaSpeculation)
        return options.heads

    @classmethod
    def cpu_problems(cls, recipe: Recipe) -> Iterator[tuple[FieldPath, str]]:
        yield from _tree_problems(recipe)

    @classmethod
    def engine_flags(
        cls, options: Speculation, role: str, release: Release
    ) -> Mapping[str, FlagValue]:
        return {MODE: "medusa", "max_draft_len": options.max_draft_len}

    @classmethod
    def heads(cls, options: Speculation) -> HeadSource:
        assert isinstance(options, MedusaSpeculation)
        return options.heads

    @classmethod
    def architectures(cls, release: Release) -> frozenset[str]:
        return frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"})

    @classmethod
    def checkpoint_fields(cls, options: Speculation) -> Mapping[str, FlagValue | None]:
        assert isinstance(options, MedusaSpeculation)
        return {
            "max_draft_len": options.max_draft_len,
            "num_medusa_heads": options.num_medusa_heads,
        }

    @classmethod
    def path_len(cls, options: Speculation) -> int:
        assert isinstance(options, MedusaSpeculation)
        return options.medusa_choices.depth

    @classmethod
    def tree(cls, options: Speculation) -> Tree:
        assert isinstance(options, MedusaSpeculation)
        return options.medusa_choices

    @classmethod
    def with_tree(cls, options: Speculation, tree: Tree) -> Mapping[str, Any]:
        return {"medusa_choices": tree, "max_draft_len": len(tree.choices)}

    @classmethod
    def decoding_config(cls, options: Speculation) -> Mapping[str, Any]:
        assert isinstance(options, MedusaSpeculation)
        return {"medusa_choices": options.medusa_choices.lists()}

    @classmethod
    def triton_parameters(cls, options: Speculation) -> Mapping[str, str]:
        assert isinstance(options, MedusaSpeculation)
        return {"decoding_mode": "medusa", "medusa_choices": options.medusa_choices.braces()}

    @classmethod
    def tensorrt_problems(cls, recipe: Recipe) -> Iterator[tuple[FieldPath, str]]:
        if cls.posterior_threshold(recipe.speculation) is not None:
            yield (
                ("speculation", "posterior_threshold"),
                "TensorRT-LLM's Medusa has no parameter for it; remove it, or use backend: cpu",
            )
        yield from _tree_problems(recipe)


def _tree_problems(recipe: Recipe) -> Iterator[tuple[FieldPath, str]]:
    options = recipe.speculation
    assert isinstance(options, MedusaSpeculation)
    for problem in fit_problems(
        options.medusa_choices.choices,
        max_draft_len=options.max_draft_len,
        depth=options.num_medusa_heads,
    ):
        yield ("speculation", "medusa_choices"), problem
