"""A trace read by steps is the trace that this process reads."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.engine_fixtures import tiny_built
from toolkit.backends.runtime import open_runtime
from toolkit.graph.work import run_step
from toolkit.measure.run import EncodedPrompt
from toolkit.measure.step_times import StepTimes
from toolkit.recipe.schema import Sampling
from toolkit.speculation.draft_length import Adaptive
from toolkit.store import open_store
from toolkit.tuning.adaptive import Pairing
from toolkit.tuning.grid import Grid, Round
from toolkit.tuning.rounds import pair_work, round_work
from toolkit.tuning.trace_mode import trace
from toolkit.tuning.trace_work import gathered, times_work, trace_work

PROMPTS = {
    domain: tuple(
        EncodedPrompt(f"{domain}-{i}", domain, (5 + i, 6, 7 + i, 6, 7 + i)) for i in range(3)
    )
    for domain in ("code", "chat")
}
GRID = Grid((1, 3), (1, 2), PROMPTS, 7)
ENGINE = {"engine": "e", "tokenizer": "t", "backend": "cpu"}


@pytest.fixture(scope="module", params=[0.0, 0.8], ids=["greedy", "sampled"])
def place(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("trace-work")
    built = tiny_built(root, max_draft_len=3)
    tune = built.recipe.tune.model_copy(
        update={"k": (1, 3), "max_tokens": 9, "sampling": Sampling(temperature=request.param)}
    )
    built = replace(built, recipe=built.recipe.model_copy(update={"tune": tune}))
    return built, open_store(str(root / "store"))


def opened_here(built, monkeypatch):
    """The engines of a test lie in no store."""
    runtime = open_runtime(built)
    monkeypatch.setattr("toolkit.tuning.trace_work.opened", lambda models: runtime)
    monkeypatch.setattr("toolkit.tuning.rounds.opened", lambda models: runtime)
    monkeypatch.setattr("toolkit.tuning.rounds._BENCHES", {})
    return runtime


def sent(work):
    """As it comes to another process."""
    return json.loads(json.dumps(work))


def test_prompt_sets_read_one_by_one_are_the_whole_trace(place, monkeypatch):
    built, store = place
    runtime = opened_here(built, monkeypatch)
    models = {
        "store": str(store.root),
        "shared": store.url,
        "recipe": built.recipe.model_dump(mode="json"),
    }
    found = {
        domain: sent(run_step("trace", sent(trace_work(models, ENGINE, GRID, domain, None))))
        for domain in PROMPTS
    }
    together = gathered(GRID, built.recipe.tune.sampling, found)
    alone = trace(built.recipe, GRID, runtime, ENGINE, store, None, confident=True)
    assert list(together.texts) == list(alone.texts)
    for key, text in alone.texts.items():
        other = together.texts[key]
        assert (other.prompt, other.output, other.sampling) == (
            text.prompt,
            text.output,
            text.sampling,
        )
        if text.target_probs is None:
            assert other.target_probs is None
        else:
            assert other.target_probs.tolist() == text.target_probs.tolist()
        for name in ("accept", "offered", "ranks", "sure"):
            one, two = (getattr(found.traces[key], name) for found in (together, alone))
            assert (one is None) == (two is None)
            assert one is None or (one.shape == two.shape and np.array_equal(one, two))
    assert together.generated_tokens == alone.generated_tokens
    assert set(together.seconds) == set(alone.seconds)
    times = StepTimes.from_json(run_step("step_times", sent(times_work(models, GRID, alone))))
    assert {(p.batch_size, p.drafted) for p in times.points} == {
        (batch, drafted) for batch in (1, 2) for drafted in (0, 1, 2, 3)
    }


def test_an_empty_trace_keeps_its_depth():
    said = {
        "texts": [[[4], None]],
        "traces": [
            {"accept": [[0, 3], []], "offered": [[0], []], "ranks": None, "sure": [[0, 3], []]}
        ],
        "generated": 1,
        "cached": False,
        "agreement": {},
        "seconds": {"outputs": 1.0},
    }
    grid = Grid((1, 3), (1,), {"code": PROMPTS["code"][:1]}, 0)
    traced = gathered(grid, Sampling(), {"code": said})
    assert traced.traces["code", "code-0"].accept.shape == (0, 3)


def test_a_round_brings_its_own_lengths_and_a_pair_its_policy(place, monkeypatch):
    built, _ = place
    opened_here(built, monkeypatch)
    round = Round("code", 2, PROMPTS["code"][:2])
    work = round_work({}, replace(GRID, ks=(3,)), round)
    runs = run_step("round", sent({**work, "grid": {**work["grid"], "ks": [1, 3]}}))["runs"]
    assert sorted(run["k"] for run in runs) == [0, 3]
    pair = pair_work({}, GRID, Pairing(round, Adaptive(1, 3), 1))
    fixed, adaptive = run_step("contest", sent(pair))["runs"]
    assert (fixed["k"], adaptive["k"]) == (1, 3)
