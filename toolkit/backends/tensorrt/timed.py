"""The parts of an external loop that count their time; see speculation/timed.py."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.backends.tensorrt.drafts import Drafts
from toolkit.backends.tensorrt.executor import Draft
from toolkit.backends.tensorrt.loops import VerifyingExecutor
from toolkit.speculation.interfaces import DraftRequest
from toolkit.speculation.timed import RandomDrafts, Stopwatch


class TimedEngine:
    """The target's engine, counting the time from a request to its answer."""

    def __init__(self, engine: VerifyingExecutor, watch: Stopwatch) -> None:
        self.submit, self.wait = watch.around(engine.submit), watch.around(engine.wait)
        self.vocab_size, self.max_seq_len = engine.vocab_size, engine.max_seq_len
        self.max_draft_len, self.cancel = engine.max_draft_len, engine.cancel


class TimedDrafts:
    """Drafts, counting the time that it takes to make them; others go to the target."""

    def __init__(self, drafts: Drafts, watch: Stopwatch, refused: RandomDrafts) -> None:
        self._drafts, self._watch, self._refused = drafts, watch, refused
        self.begin, self.accept, self.end = drafts.begin, drafts.accept, drafts.end

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        with self._watch:
            self._drafts.propose(requests)
        return [Draft(self._refused(request.draft_len)) for request in requests]
