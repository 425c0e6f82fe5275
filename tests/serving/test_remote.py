"""What target and draft models are asked, and what they answer, sensible or not."""

from __future__ import annotations

import numpy as np
import pytest

from toolkit.errors import RunError
from toolkit.serving import remote
from toolkit.serving.bls import Draft
from toolkit.serving.remote import Dialect, RemoteDraft, RemoteTarget, _draft, call_seed
from toolkit.serving.tensorrt.tensors import engine_contract, names
from toolkit.speculation.interfaces import SamplingParams
from toolkit.speculation.request import GREEDY, Request
from toolkit.speculation.sampling import Role

SENT = (1, 2, 3)


def answer(tokens, rows=None):
    found = {
        "output_ids": np.array([[tokens]], np.int32).reshape(1, 1, -1),
        "sequence_length": np.array([[len(tokens)]], np.int32),
    }
    if rows is not None:
        found["generation_logits"] = np.arange(rows * 3, dtype=np.float32).reshape(1, 1, rows, 3)
    return found


def test_tokens_and_the_logits_that_they_came_from():
    draft = _draft(answer([4, 5], rows=2), SENT, 4)
    assert draft.tokens == (4, 5)
    assert draft.logits.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_an_engine_that_gives_a_row_for_the_prompt_too_is_understood():
    assert _draft(answer([4], rows=2), SENT, 4).logits.tolist() == [[3, 4, 5]]


def test_nothing_drafted_has_no_logits():
    assert _draft(answer([], rows=1), SENT, 4).logits is None


def test_more_than_was_asked_for_is_cut():
    assert _draft(answer([4, 5, 6]), SENT, 2).tokens == (4, 5)


@pytest.mark.parametrize(
    "wrong", [{}, {"sequence_length": np.zeros((1, 1), np.int32)}, answer([4, 5], rows=1)]
)
def test_nonsense_is_an_error_that_costs_only_the_draft(wrong):
    with pytest.raises((ValueError, LookupError)):
        _draft(wrong, SENT, 4)


def test_a_model_that_repeats_its_input_is_understood():
    assert _draft(answer([1, 2, 3, 4, 5]), SENT, 2).tokens == (4, 5)


def test_a_fast_draft_hands_its_one_row_over_as_it_is():
    draft = _draft(answer([4, 5, 6], rows=1), SENT, 4, fast_logits=True)
    assert draft.tokens == (4, 5, 6)
    assert draft.logits.tolist() == [[0, 1, 2]]


class FakeServer:
    """Remembers what target and draft were asked, and answers with fixed tokens."""

    def __init__(self, tokens, logits=None) -> None:
        self.tokens, self.logits = tokens, logits
        self.asked: list[dict[str, np.ndarray]] = []
        self.ids: list[str] = []

    def __call__(self, model, inputs, outputs, *, request_id=""):
        self.asked.append(dict(inputs))
        self.ids.append(request_id)
        found = answer(self.tokens)
        if self.logits is not None and "generation_logits" in outputs:
            found["generation_logits"] = self.logits
        return found


@pytest.fixture
def server(monkeypatch) -> FakeServer:
    fake = FakeServer([7])
    monkeypatch.setattr(remote, "ask", fake)
    monkeypatch.setattr(
        remote, "tensor", lambda name, values, dtype: (name, np.ascontiguousarray(values, dtype))
    )
    return fake


SAMPLED = SamplingParams(0.7, 5, 0.9, seed=11)
ENGINES = Dialect(engines=True)


def request(sampling=GREEDY) -> Request:
    return Request(SENT, 8, sampling)


@pytest.mark.parametrize("version", [(0, 16), (0, 18), (0, 19), (0, 20), (1, 2)])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_only_tensors_of_the_release_are_sent_with_its_types_and_shapes(server, version, sampling):
    dialect = Dialect(names(version).seed, engines=True)
    target = RemoteTarget("tensorrt_llm", request(sampling), dialect)
    target.verify(SENT, Draft((7,), np.zeros((1, 9), np.float32)))
    target.extend(SENT, 2)
    server.tokens, server.logits = [4, 5], np.zeros((1, 1, 2, 9), np.float32)
    RemoteDraft("draft", request(sampling), dialect, with_logits=True).propose(SENT, 4)
    contract = engine_contract(version)
    kinds = {"INT32": np.int32, "FP32": np.float32, "UINT64": np.uint64, "BOOL": np.bool_}
    assert len(server.asked) == 3
    for asked in server.asked:
        assert {"input_ids", "input_lengths", "request_output_len"} <= set(asked)
        for name, values in asked.items():
            declared = contract.input(name)
            assert declared is not None, name
            assert values.dtype == kinds[declared.dtype], name
            # One request, then the declared dims: a scalar goes as [1, 1] and is reshaped there.
            assert values.shape[0] == 1
            assert values.ndim == 1 + len(declared.dims), name
    assert server.asked[0]["draft_logits"].shape == (1, 1, 9)
    assert server.asked[0]["draft_input_ids"].tolist() == [[7]]


def test_an_engine_gets_a_seed_of_its_own_with_every_call(server):
    target = RemoteTarget("t", request(SAMPLED), ENGINES)
    draft = RemoteDraft("d", request(SAMPLED), ENGINES, with_logits=False)
    for text in (SENT, (*SENT, 7), (*SENT, 7, 7)):
        target.extend(text, 1)
        draft.propose(text, 1)
    seeds = [int(asked["seed"][0, 0]) for asked in server.asked]
    assert len(set(seeds)) == 6
    assert seeds[0] == call_seed(11, 3, Role.EMIT)
    again = RemoteTarget("t", request(SAMPLED), ENGINES)
    again.extend(SENT, 1)
    assert int(server.asked[-1]["seed"][0, 0]) == seeds[0]


def test_our_own_models_get_the_requests_seed_and_its_id(server):
    target = RemoteTarget("t", request(SAMPLED))
    target.extend(SENT, 1)
    target.extend((*SENT, 7), 1)
    target.release()
    assert [int(asked["seed"][0, 0]) for asked in server.asked[:2]] == [11, 11]
    assert len(set(server.ids)) == 1
    assert server.asked[-1]["stop"].tolist() == [[True]]


def test_nothing_is_kept_in_an_engine(server):
    target = RemoteTarget("t", request(), ENGINES)
    target.extend(SENT, 1)
    target.release()
    assert server.ids == [""]


def test_greedy_is_said_and_not_left_to_the_backends_default(server):
    RemoteTarget("t", request(), ENGINES).extend(SENT, 1)
    assert server.asked[0]["runtime_top_k"].tolist() == [[1]]
    assert "temperature" not in server.asked[0]


def test_fast_logits_reach_the_target_unchanged(server):
    dialect = Dialect(engines=True, fast_logits=True)
    server.tokens, server.logits = [4, 5], np.array([[[[1.5, -2.0, 3.0]]]], np.float32)
    source = RemoteDraft("d", request(SAMPLED), dialect, with_logits=True)
    draft = source.propose(SENT, 2)
    server.tokens = [4, 5, 6]
    assert RemoteTarget("t", request(SAMPLED), dialect).verify(SENT, draft) == [4, 5, 6]
    assert server.asked[-1]["draft_logits"].tolist() == [[[1.5, -2.0, 3.0]]]


def test_logits_travel_in_the_type_that_the_draft_engine_gave_them(server):
    half = np.zeros((1, 9), np.float16)
    RemoteTarget("t", request(), ENGINES).verify(SENT, Draft((7,), half))
    assert server.asked[0]["draft_logits"].dtype == np.float16


def test_more_tokens_than_a_step_can_have_are_an_error(server):
    server.tokens = [7, 8, 9]
    with pytest.raises(RunError, match="3 tokens, where 2 were asked for"):
        RemoteTarget("t", request(), ENGINES).verify(SENT, Draft((7,)))
