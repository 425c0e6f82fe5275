"""Where the drafts of an external loop come from: a draft engine, or a drafter without a model.

Both can be traced over greedy texts: an engine that is asked for one token after each beginning of
a text says what it would have drafted there, whatever the length of the draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from toolkit.backends.tensorrt.executor import Answer, Draft, EngineExecutor
from toolkit.speculation.interfaces import Drafter, DraftRequest
from toolkit.speculation.request import GREEDY
from toolkit.speculation.trace import DraftTrace, TracedText, by_position


class Answering(Protocol):
    """An engine that was asked something."""

    def wait(self) -> list[Answer]: ...

    def cancel(self, request: int) -> None: ...


class Drafts(Protocol):
    """The life of a drafter, with logits where the target accepts by them."""

    def begin(self, seq: int, prompt: Sequence[int]) -> None: ...

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]: ...

    def accept(self, seq: int, tokens: Sequence[int], accepted: int) -> None: ...

    def end(self, seq: int) -> None: ...


class ModelDrafts:
    """A draft engine generates; its KV blocks are reused, so it keeps no state here."""

    has_confidence = False  # that would take logits

    def __init__(self, draft: EngineExecutor, *, use_logits: bool) -> None:
        self._draft = draft
        self._use_logits = use_logits

    def begin(self, seq: int, prompt: Sequence[int]) -> None:
        pass

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        names = [self._submit(request) for request in requests]
        answers = answers_to(self._draft, [name for name in names if name is not None])
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

    def trace(self, text: TracedText, depth: int, least: float | None = None) -> DraftTrace:
        """A draft goes on as the text does for as long as it stands, so one token tells."""
        starts, prompt = len(text.output) - 1, len(text.prompt)
        room = self._draft.max_seq_len - prompt - 1 - np.arange(starts)  # as in `_submit`
        offered = np.clip(room, 0, depth)
        stands = np.zeros(starts)
        reach = min(starts, max(0, self._draft.max_seq_len - prompt - 1))
        after = [*text.prompt, text.output[0]]
        stands[:reach] = greedy_choices(self._draft, after, text.output[1 : reach + 1])
        return DraftTrace(by_position(stands, depth), offered)


class LookupDrafts:
    """A drafter of our own that needs no model: prompt lookup."""

    has_confidence = False

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

    def trace(self, text: TracedText, depth: int, least: float | None = None) -> DraftTrace:
        return self._drafter.trace(text, depth)


def greedy_choices(
    engine: EngineExecutor,
    text: Sequence[int],
    following: Sequence[int],  # [T]
) -> NDArray[np.float64]:  # [T]
    """1 where the engine's own choice after all that stands before is the token that follows.

    One request for each token, all of them at once: reused KV blocks make the long ones short.
    """
    tokens = [*text, *following]
    ends = range(len(text), len(tokens))
    names = [engine.submit(tokens[:end], 1, GREEDY) for end in ends]
    answers = answers_to(engine, names)
    said = [answers[name].tokens[:1] for name in names]
    return np.array([float(a == [b]) for a, b in zip(said, following, strict=True)])


def answers_to(engine: Answering, names: Sequence[int]) -> dict[int, Answer]:
    """The last answer to each of these requests; whatever fails, none of them runs on."""
    wanted, found = set(names), dict[int, Answer]()
    try:
        while set(found) != wanted:
            found |= {a.request: a for a in engine.wait() if a.request in wanted}
    except BaseException:
        for name in wanted - set(found):
            engine.cancel(name)
        raise
    return found
