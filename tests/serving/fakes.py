"""Served models without a server: the real engine behind them, driven in the caller's thread."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from tests.speculation.table_model import FakeTableModel
from toolkit.errors import SpectoolError
from toolkit.serving.bls import Draft, DraftSource, DraftUnavailableError, Target
from toolkit.serving.calls import Call, Emission
from toolkit.serving.failures import Code, code_of
from toolkit.serving.llm import CallEngine
from toolkit.serving.replies import Reply
from toolkit.speculation.request import Request
from toolkit.speculation.sampling import Role

_ids = count()


class FakeSink:
    """Remembers what it was sent."""

    def __init__(self, *, gone: bool = False) -> None:
        self.emissions: list[Emission] = []
        self.failure: str | None = None
        self.code: Code | None = None
        self.gone = gone

    def send(self, emission: Emission) -> None:
        self.emissions.append(emission)

    def fail(self, error: SpectoolError) -> None:
        self.failure, self.code = str(error), code_of(error)

    def cancelled(self) -> bool:
        return self.gone

    @property
    def tokens(self) -> list[int]:
        return [token for emission in self.emissions for token in emission.tokens]


class FakeReplySink:
    """Remembers the replies of a text request."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.failure: str | None = None
        self.code: Code | None = None
        self.gone = False

    def send(self, reply: Reply) -> None:
        self.replies.append(reply)

    def fail(self, error: SpectoolError) -> None:
        self.failure, self.code = str(error), code_of(error)

    def cancelled(self) -> bool:
        return self.gone


def finish(engine: CallEngine, call: Call) -> FakeSink:
    """Run one call to its end."""
    sink = FakeSink()
    engine.submit(call, sink)
    while engine.busy:
        engine.step()
    return sink


class _FakeServed:
    def __init__(self, engine: CallEngine, request: Request) -> None:
        self.engine, self.request = engine, request
        self.id = f"request-{next(_ids)}"
        self.lengths: list[int] = []  # draft tokens of every call

    def _call(self, tokens: Sequence[int], length: int, **more: object) -> Call:
        return Call(
            input_ids=tuple(tokens),
            request_output_len=length,
            sampling=self.request.sampling,
            request_id=self.id,
            **more,  # type: ignore[arg-type]
        )

    def release(self) -> None:
        self.engine.stop(self.id)


class FakeServedTarget(_FakeServed, Target):
    """`tensorrt_llm`."""

    def verify(self, tokens: Sequence[int], draft: Draft) -> list[int]:
        self.lengths.append(len(draft.tokens))
        call = self._call(
            tokens,
            len(draft.tokens) + 1,
            draft_input_ids=draft.tokens,
            draft_logits=draft.logits,
        )
        return finish(self.engine, call).tokens

    def extend(self, tokens: Sequence[int], count: int) -> list[int]:
        return finish(self.engine, self._call(tokens, count)).tokens


class FakeServedDraft(_FakeServed, DraftSource):
    """`tensorrt_llm_draft`, which may be told to fail after some calls."""

    def __init__(
        self, engine: CallEngine, request: Request, *, logits: bool, fail_after: int | None = None
    ) -> None:
        super().__init__(engine, request)
        self.logits = logits and not request.sampling.greedy
        self.left = fail_after

    def propose(self, tokens: Sequence[int], draft_len: int) -> Draft:
        if self.left is not None:
            if self.left == 0:
                raise DraftUnavailableError("tensorrt_llm_draft: out of order")
            self.left -= 1
        sink = finish(self.engine, self._call(tokens, draft_len, return_logits=self.logits))
        return Draft(tuple(sink.tokens), sink.emissions[-1].logits)


def target_engine(model: FakeTableModel) -> CallEngine:
    return CallEngine(model, Role.EMIT)


def draft_engine(model: FakeTableModel) -> CallEngine:
    return CallEngine(model, Role.DRAFT)
