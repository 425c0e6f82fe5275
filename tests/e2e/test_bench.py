"""`spectool bench` against real servers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from toolkit.cli import main
from toolkit.errors import InputError, RunError
from toolkit.serving.client import Ask
from toolkit.serving.load.arrivals import Closed, Until
from toolkit.serving.load.drive import drive
from toolkit.serving.load.endpoint import Endpoint
from toolkit.serving.load.jobs import Job

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "short.jsonl"
    path.write_text("".join(f'{{"prompt": "Question {i * 37}: why?"}}\n' for i in range(8)))
    return path


def bench(capsys, deployment, prompts, *more) -> dict:
    options = ["--prompts", str(prompts), "--max-tokens", "20", "--json", *more]
    with pytest.raises(SystemExit) as done:
        main(["bench", deployment.address.grpc, *options])
    assert done.value.code == 0
    return json.loads(capsys.readouterr().out)


def test_a_closed_loop_counts_what_was_asked(deployment, prompts, capsys):
    found = bench(capsys, deployment, prompts, "--requests", "12", "--concurrency", "4")
    assert (found["model"], found["requests"]) == (deployment.model, 12)
    assert found["output_tokens"] == 12 * 20
    assert found["error_rate"] == found["refusal_rate"] == found["cancel_rate"] == 0.0
    assert 0 < found["accepted_tokens"] < found["draft_tokens"]
    assert 1 < found["acceptance_length"] <= 5
    for times in ("ttft_ms", "tpot_ms", "icl_ms", "e2e_ms"):
        values = list(found[times].values())
        assert 0 < values[0] <= values[-1]
        assert values == sorted(values)


def test_an_open_loop_sends_at_its_rate(inprocess, prompts, capsys):
    found = bench(capsys, inprocess, prompts, "--rate", "20", "--requests", "30", "--k", "0")
    assert found["load"] == "open loop, 20 requests/s (Poisson)"
    assert found["sending_s"] == pytest.approx(29 / 20, rel=0.6)
    assert found["draft_tokens"] == 0
    assert found["acceptance_rate"] is None


def test_clients_that_go_away_are_no_errors(inprocess, prompts, capsys):
    options = ("--requests", "16", "--cancel-rate", "1", "--max-tokens", "200")
    found = bench(capsys, inprocess, prompts, *options)
    assert found["cancel_rate"] > 0.9
    assert found["error_rate"] == 0.0
    assert found["output_tokens"] < 16 * 100


def test_a_search_says_what_it_tried(inprocess, prompts, capsys):
    options = ("--requests", "4", "--concurrency", "1", "--tpot-limit", "0.001")
    found = bench(capsys, inprocess, prompts, *options)
    assert found["limit"] == {"tpot_ms": 0.001, "percentile": 99.0}
    assert [t["load"] for t in found["tried"]] == [1]
    assert "TPOT p99" in found["tried"][0]["broken"]


def test_text_of_a_load_is_text_of_one_request(inprocess, prompts):
    from toolkit.serving.client import generate

    asks = [Ask(text_input=f"Number {i}", max_tokens=24, stream=True) for i in range(8)]
    got = {}

    async def work():
        async with await Endpoint.open(inprocess.address.grpc) as endpoint:
            await drive(
                endpoint,
                iter([Job(ask) for ask in asks]),
                Closed(8),
                Until(requests=8),
                on_done=lambda job, sample: got.update({job.ask.text_input: sample.text}),
            )

    asyncio.run(work())
    for ask in asks:
        alone = generate(inprocess.address.http, inprocess.model, replace(ask, stream=None))
        assert got[ask.text_input] == alone.text


def test_a_model_that_is_not_there_and_one_that_is_no_text_model(bls):
    with pytest.raises(RunError, match="unknown model: 'nope'"):
        asyncio.run(Endpoint.open(bls.address.grpc, "nope"))
    with pytest.raises(InputError, match=r"tensorrt_llm takes input_ids.*not a text model"):
        asyncio.run(Endpoint.open(bls.address.grpc, "tensorrt_llm"))


def test_a_server_that_is_not_there():
    with pytest.raises(RunError, match="UNAVAILABLE"):
        asyncio.run(Endpoint.open("127.0.0.1:9", "spectool"))
