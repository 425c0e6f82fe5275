"""The parts of an external loop that count their time; see speculation/timed.py."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.backends.tensorrt.drafts import Drafts
from toolkit.backends.tensorrt.executor import Answer, Draft
from toolkit.backends.tensorrt.loops import VerifyingExecutor
from toolkit.speculation.interfaces import DraftRequest, SamplingParams
from toolkit.speculation.timed import RandomDrafts, Stopwatch


class TimedEngine:
    """The target's engine, counting the time from a request to its answer."""

    def __init__(self, engine: VerifyingExecutor, watch: Stopwatch) -> None:
        self._engine, self._watch = engine, watch
        self.vocab_size, self.max_seq_len = engine.vocab_size, engine.max_seq_len
        self.max_draft_len, self.cancel = engine.max_draft_len, engine.cancel

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams,
        *,
        stop_tokens: frozenset[int] = frozenset(),
        streaming: bool = False,
        draft: Draft | None = None,
    ) -> int:
        with self._watch:
            return self._engine.submit(
                prompt, max_tokens, sampling,
                stop_tokens=stop_tokens, streaming=streaming, draft=draft,
            )  # fmt: skip

    def wait(self) -> list[Answer]:
        with self._watch:
            return self._engine.wait()


class TimedDrafts:
    """Drafts, counting the time that it takes to make them; others go to the target."""

    def __init__(self, drafts: Drafts, watch: Stopwatch, refused: RandomDrafts) -> None:
        self._drafts, self._watch, self._refused = drafts, watch, refused
        self.begin, self.accept, self.end = drafts.begin, drafts.accept, drafts.end

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        with self._watch:
            self._drafts.propose(requests)
        return [Draft(self._refused(request.draft_len)) for request in requests]
