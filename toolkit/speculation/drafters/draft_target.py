"""A smaller model of the same vocabulary drafts, token by token, with its own KV cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from toolkit.recipe.release import Release, Version
from toolkit.recipe.schema import HeadSource, ModelSpec, Recipe, Speculation
from toolkit.speculation.draft_chain import DraftChain
from toolkit.speculation.interfaces import Drafter, DraftRequest, LanguageModel, Proposal, Step
from toolkit.speculation.llmapi import LATE_1_3, DraftCheckpoint
from toolkit.speculation.migration import NGRAM_COSTS, Change
from toolkit.speculation.teacher_forced import confidences, true_token_probs
from toolkit.speculation.tensorrt import FieldPath, FlagValue, external_draft_flags
from toolkit.speculation.trace import DraftTrace, TracedText, by_position, chance_to_stand

_PREFILL_CHUNK = 512
_TRACED = -1  # sequences of a trace, downwards: no loop numbers one so


class DraftTargetSpeculation(Speculation):
    """A second checkpoint with the target's tokenizer drafts."""

    drafter: Literal["draft_target"] = "draft_target"
    draft: ModelSpec
    use_draft_logits: bool = Field(
        False, description="Backend tensorrt: accept by the draft's logits rather than its tokens."
    )


class DraftTargetDrafter(Drafter):
    """One forward pass of the draft model per depth, over the sequences that still draft."""

    Options: ClassVar[type[Speculation]] = DraftTargetSpeculation
    has_confidence = True
    llmapi_since: ClassVar[str | None] = "1.0"
    nearest: ClassVar[Mapping[str, str]] = {"ngram": NGRAM_COSTS}
    optional: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "use_draft_logits": (),
        "draft.parallel": (),
    }

    def __init__(self, draft: LanguageModel, vocab_size: int | None = None) -> None:
        self._draft = draft
        self._vocab_size = vocab_size or draft.vocab_size  # the target's
        self._slots: dict[int, int] = {}
        self._proposed_at: dict[int, int] = {}  # length of the text when it was last continued

    @classmethod
    def models(cls, options: Speculation, target: ModelSpec) -> dict[str, ModelSpec]:
        assert isinstance(options, DraftTargetSpeculation)
        return {"draft": options.draft}

    @classmethod
    def engine_flags(
        cls, options: Speculation, role: str, release: Release
    ) -> Mapping[str, FlagValue]:
        assert isinstance(options, DraftTargetSpeculation)
        flags = external_draft_flags(options, role)
        # Later releases gather them at run time and say that the flag is deprecated.
        if options.use_draft_logits and release < (0, 17):
            flags["gather_generation_logits"] = True
        return flags

    @classmethod
    def tensorrt_problems(cls, recipe: Recipe) -> Iterator[tuple[FieldPath, str]]:
        options = recipe.speculation
        assert isinstance(options, DraftTargetSpeculation)
        tp, target_tp = options.draft.parallel.tp, recipe.target.parallel.tp
        if tp not in (1, target_tp):
            yield (
                ("speculation", "draft", "parallel", "tp"),
                f"{tp}; the draft runs on one GPU or on all of the target's (1 or {target_tp})",
            )

    @classmethod
    def pair_problems(
        cls, recipe: Recipe, configs: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[tuple[FieldPath, str]]:
        options = recipe.speculation
        assert isinstance(options, DraftTargetSpeculation)
        if not options.use_draft_logits or not {"draft", "target"} <= set(configs):
            return
        width = {role: _padded(configs[role]) for role in ("draft", "target")}
        if width["draft"] != width["target"]:
            yield (
                ("speculation", "use_draft_logits"),
                f"the draft's logits are {width['draft']} wide, the target's {width['target']}, "
                "and TensorRT-LLM needs equal ones: false accepts by tokens, or take a draft with "
                "the target's vocab_size",
            )

    @classmethod
    def llmapi_draft(cls, options: Speculation) -> DraftCheckpoint:
        assert isinstance(options, DraftTargetSpeculation)
        draft = options.draft
        source = HeadSource(checkpoint=draft.checkpoint, revision=draft.revision)
        return DraftCheckpoint(source, "model")

    @classmethod
    def means_on(cls, options: Speculation, backend: str) -> Iterator[Change]:
        assert isinstance(options, DraftTargetSpeculation)
        if backend == "pytorch" and "dtype" in options.draft.model_fields_set:
            yield Change(
                "speculation.draft.dtype",
                "changed",
                f"{options.draft.dtype}, but the draft runs in its own checkpoint's precision",
            )

    @classmethod
    def in_target_graph(cls, options: Speculation, release: Version) -> bool:
        return release >= LATE_1_3

    @classmethod
    def overlaps(cls, options: Speculation, release: Version) -> bool:
        return release >= LATE_1_3

    @classmethod
    def llmapi_problems(cls, recipe: Recipe, release: Version) -> Iterator[tuple[FieldPath, str]]:
        options = recipe.speculation
        assert isinstance(options, DraftTargetSpeculation)
        where = ("speculation", "draft")
        if options.draft.layers is not None:
            yield (*where, "layers"), "TensorRT-LLM loads whole checkpoints; remove it"
        if options.draft.quantization is not None:
            yield (
                (*where, "quantization"),
                "TensorRT-LLM loads a draft as its checkpoint is; name a quantised checkpoint "
                "instead, and remove it",
            )
        if "parallel" in options.draft.model_fields_set and (
            options.draft.parallel.tp not in (1, recipe.target.parallel.tp)
        ):
            yield (
                (*where, "parallel", "tp"),
                f"{options.draft.parallel.tp}; the draft runs on the target's GPUs "
                f"(parallel.tp {recipe.target.parallel.tp}); remove it",
            )
        if options.use_draft_logits:
            yield (
                ("speculation", "use_draft_logits"),
                "backend tensorrt only; here pytorch.rejection_sampling is the switch",
            )

    @classmethod
    def create(
        cls, options: Speculation, models: Mapping[str, LanguageModel]
    ) -> DraftTargetDrafter:
        target = models.get("target")
        return cls(models["draft"], target.vocab_size if target else None)

    def begin(self, seq: int, prompt: Sequence[int]) -> None:
        if len(prompt) >= self._draft.max_seq_len:
            return  # no room to draft: this sequence gets empty proposals
        self._slots[seq] = slot = self._draft.open()
        # Read the prompt now: a draft's prefill belongs to the time to first token.
        known = self._draft.adopt(slot, prompt)
        for start in range(known, len(prompt), _PREFILL_CHUNK):
            chunk = np.asarray(prompt[start : start + _PREFILL_CHUNK], dtype=np.int64)
            self._draft.forward([Step(slot, chunk, rows=0)])
        self._draft.share(slot, prompt)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [chain.proposal() for chain in self._chains(requests)]

    def _chains(self, requests: Sequence[DraftRequest]) -> list[DraftChain]:
        drafts = [DraftChain(request, self._vocab_size) for request in requests]
        drafting = [d for d in drafts if self._room(d.request) > 0]
        self._proposed_at |= {d.request.seq: len(d.request.tokens) for d in drafting}
        feeds = [self._unread(d.request) for d in drafting]
        while drafting:
            steps = [
                Step(self._slots[d.request.seq], np.asarray(feed, dtype=np.int64))
                for d, feed in zip(drafting, feeds, strict=True)
            ]
            outputs = zip(drafting, self._draft.forward(steps), strict=True)
            drafting = [
                d
                for d, output in outputs
                if d.extend(output.logits[0, : self._vocab_size])
                and len(d.tokens) < self._room(d.request)
            ]
            feeds = [d.tokens[-1:] for d in drafting]
        return drafts

    def _unread(self, request: DraftRequest) -> Sequence[int]:
        """What the draft has not read: the last token, and after full acceptance one before it."""
        slot = self._slots[request.seq]
        known = min(self._draft.length(slot), len(request.tokens) - 1)
        self._draft.truncate(slot, known)  # of use after a proposal that was broken off
        return request.tokens[known:]

    def _room(self, request: DraftRequest) -> int:
        """How many tokens this sequence may draft before the draft's own cache is full."""
        if request.seq not in self._slots:
            return 0
        return min(request.draft_len, self._draft.max_seq_len - len(request.tokens))

    def accept(self, seq: int, tokens: Sequence[int], accepted: int) -> None:
        """Roll back to the accepted length; the draft never read the last token it drafted."""
        if seq in self._proposed_at:
            slot, valid = self._slots[seq], self._proposed_at.pop(seq) + accepted
            self._draft.truncate(slot, min(self._draft.length(slot), valid))

    def end(self, seq: int) -> None:
        self._proposed_at.pop(seq, None)
        if seq in self._slots:
            self._draft.close(self._slots.pop(seq))

    def trace(self, text: TracedText, depth: int, least: float | None = None) -> DraftTrace:
        """One reading of the text: what the draft says at a token does not depend on the start."""
        starts, prompt = len(text.output) - 1, len(text.prompt)
        room = self._draft.max_seq_len - prompt - 1 - np.arange(starts)  # as in `_room`
        offered = np.clip(room, 0, depth) if prompt < self._draft.max_seq_len else room * 0
        stands = np.zeros(starts)
        readable = int(np.count_nonzero(offered))
        if readable:
            # One more token than has a start: the last start may draft up to the end of the cache.
            reach = min(starts, self._draft.max_seq_len - prompt)
            output = text.output[: reach + 1]
            probs = true_token_probs(
                self._draft, text.prompt, output, text.sampling, self._vocab_size
            )[1:]
            if text.target_probs is not None:
                probs = chance_to_stand(probs, text.target_probs[1 : reach + 1])
            stands[:reach] = probs
        sure = None if least is None else self._sure(text, stands, offered, depth, least)
        return DraftTrace(by_position(stands, depth), offered, sure=sure)

    def _sure(
        self,
        text: TracedText,
        stands: NDArray[np.float64],  # [N] of the first draft from each start
        offered: NDArray[np.int64],  # [N]
        depth: int,
        least: float,
    ) -> NDArray[np.float64]:  # [N, depth]
        """How sure the draft is of each of its drafts."""
        starts, first = len(stands), np.zeros(len(stands))
        reach = min(starts, max(0, self._draft.max_seq_len - len(text.prompt)))
        if reach:
            output = text.output[: reach + 1]
            first[:reach] = confidences(self._draft, text.prompt, output, self._vocab_size)[1:]
        if not text.sampling.greedy:
            return by_position(first, depth)
        # After a draft that stands goes on what starts one token later. Others leave the text.
        leaves = [i for i in range(starts) if offered[i] and (i + 1 == starts or not stands[i])]
        sure = np.zeros((starts, depth))
        sure[leaves] = self._sure_alone(text, leaves, depth, least)
        for start in sorted(set(np.flatnonzero(offered)) - set(leaves), reverse=True):
            sure[start] = [first[start], *sure[start + 1, :-1]]
        return sure

    def _sure_alone(
        self, text: TracedText, starts: Sequence[int], depth: int, least: float
    ) -> NDArray[np.float64]:  # [S, depth]
        """The same from these starts, drafting as in the loop."""
        sure = np.zeros((len(starts), depth))
        longest = len(text.prompt) + len(text.output) + depth
        size = min(self._draft.max_batch_size, max(1, self._draft.kv_capacity // longest))
        for first in range(0, len(starts), size):
            rows = range(first, min(first + size, len(starts)))
            requests = [
                DraftRequest(
                    _TRACED - row,
                    [*text.prompt, *text.output[: starts[row] + 1]],
                    depth,
                    text.sampling,
                    least,
                )
                for row in rows
            ]
            try:
                for request in requests:
                    self.begin(request.seq, request.tokens[:-1])
                for row, chain in zip(rows, self._chains(requests), strict=True):
                    sure[row, : len(chain.sure)] = chain.sure
            finally:
                for request in requests:
                    self.end(request.seq)
        return sure


def _padded(config: Mapping[str, Any]) -> int:
    """Width of a checkpoint's logits: the vocabulary, padded to a multiple of its ranks."""
    ranks = int(config["mapping"]["tp_size"])
    return -(-int(config["vocab_size"]) // ranks) * ranks
