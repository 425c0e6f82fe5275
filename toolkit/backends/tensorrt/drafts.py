"""Where the drafts of an external loop come from: a draft engine, or a drafter without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from toolkit.backends.tensorrt.executor import Answer, Draft, EngineExecutor
from toolkit.speculation.interfaces import Drafter, DraftRequest


class Drafts(Protocol):
    """The life of a drafter, with logits where the target accepts by them."""

    def begin(self, seq: int, prompt: Sequence[int]) -> None: ...

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]: ...

    def accept(self, seq: int, tokens: Sequence[int], accepted: int) -> None: ...

    def end(self, seq: int) -> None: ...


class ModelDrafts:
    """A draft engine generates; its KV blocks are reused, so it keeps no state here."""

    def __init__(self, draft: EngineExecutor, *, use_logits: bool) -> None:
        self._draft = draft
        self._use_logits = use_logits

    def begin(self, seq: int, prompt: Sequence[int]) -> None:
        pass

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        names = [self._submit(request) for request in requests]
        wanted = {name for name in names if name is not None}
        answers: dict[int, Answer] = {}
        try:
            while set(answers) != wanted:
                answers |= {a.request: a for a in self._draft.wait() if a.request in wanted}
        except BaseException:
            for name in wanted - set(answers):
                self._draft.cancel(name)
            raise
        return [Draft([]) if name is None else self._made(answers[name]) for name in names]

    def _submit(self, request: DraftRequest) -> int | None:
        room = min(request.draft_len, self._draft.max_seq_len - len(request.tokens))
        return self._draft.submit(request.tokens, room, request.sampling) if room > 0 else None

    def _made(self, answer: Answer) -> Draft:
        return Draft(answer.tokens, answer.logits if self._use_logits else None)

    def accept(self, seq: int, tokens: Sequence[int], accepted: int) -> None:
        pass

    def end(self, seq: int) -> None:
        pass


class LookupDrafts:
    """A drafter of our own that needs no model: prompt lookup."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    def begin(self, seq: int, prompt: Sequence[int]) -> None:
        self._drafter.begin(seq, prompt)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft(proposal.tokens) for proposal in self._drafter.propose(requests)]

    def accept(self, seq: int, tokens: Sequence[int], accepted: int) -> None:
        self._drafter.accept(seq, tokens, accepted)

    def end(self, seq: int) -> None:
        self._drafter.end(seq)
