"""A few seconds of what `bench/soak.py` does for ten minutes, and every hostile request once."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.soak import HOSTILE, Conditions, soak
from toolkit.serving.client import Ask, generate
from toolkit.serving.load.endpoint import Endpoint
from toolkit.serving.load.jobs import Job

pytestmark = pytest.mark.triton

ASK = Ask(text_input="Hello", max_tokens=8)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("layout", ["inprocess", "bls"])
def test_good_requests_are_answered_and_everything_comes_back(tmp_path, layout):
    report = soak(tmp_path, Conditions(layout=layout, seconds=4.0, prompts=24))
    assert report.problems() == []
    assert report.good > 10
    assert report.cancelled > 0
    assert report.held
    assert report.figures.error_rate == pytest.approx(
        report.hostile / report.figures.requests, abs=0.2
    )


def test_every_hostile_request_is_refused_and_the_server_goes_on(deployment):
    async def ask_all():
        async with await Endpoint.open(deployment.address.grpc, deployment.model) as endpoint:
            return {
                name: await endpoint.ask(Job(ASK, raw=raw), 0, 60.0)
                for name, raw in HOSTILE.items()
            }

    before = generate(deployment.address.http, deployment.model, ASK)
    samples = asyncio.run(ask_all())
    answered = {name: sample.text for name, sample in samples.items() if sample.outcome != "failed"}
    assert answered == {}
    assert all(sample.message for sample in samples.values())
    assert generate(deployment.address.http, deployment.model, ASK) == before
