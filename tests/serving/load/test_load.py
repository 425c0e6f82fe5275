"""When requests come, which are cancelled, and where a search ends."""

from __future__ import annotations

import asyncio
import json
import shlex
from dataclasses import replace
from itertools import islice, pairwise

import pytest

from toolkit.serving.client import Ask
from toolkit.serving.load.aiperf import aiperf_command
from toolkit.serving.load.arrivals import Closed, Poisson
from toolkit.serving.load.figures import figures
from toolkit.serving.load.jobs import jobs
from toolkit.serving.load.sample import Sample
from toolkit.serving.load.saturation import Limit, best, closed, poisson, search

MS = 1_000_000


def test_poisson_gaps_are_exponential():
    times = list(islice(Poisson(20.0, seed=3).times(), 20_000))
    gaps = [b - a for a, b in zip([0.0, *times], times, strict=False)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 20, rel=0.03)
    # P(gap > mean) = 1/e of an exponential; 1/2 of a uniform one.
    assert sum(gap > mean for gap in gaps) / len(gaps) == pytest.approx(0.3679, abs=0.015)


def test_arrivals_of_one_seed_repeat():
    first, again = (list(islice(Poisson(5.0, seed=9).times(), 50)) for _ in range(2))
    assert first == again
    assert first != list(islice(Poisson(5.0, seed=10).times(), 50))


def test_no_prompt_comes_twice_word_for_word():
    asks = [Ask(text_input=text, max_tokens=8) for text in ("a", "b")]
    texts = [job.ask.text_input for job in islice(jobs(asks), 200)]
    assert texts[:4] == ["a", "b", "1. a", "1. b"]
    assert len(set(texts)) == 200


def test_so_many_clients_go_away():
    made = list(islice(jobs([Ask(text_input="a", max_tokens=80)], cancel_rate=0.2), 5000))
    gone = [job.cancel_after for job in made if job.cancel_after is not None]
    assert len(gone) / 5000 == pytest.approx(0.2, abs=0.02)
    assert {min(gone), max(gone)} == {0, 10}


def answered(tpot_ms: float, e2e_ms: float = 100.0, due_ms: float = 0.0) -> Sample:
    arrivals = [10 * MS, int((10 + tpot_ms) * MS)]
    return Sample(int(due_ms * MS), chunk_ns=arrivals, e2e_ns=int(e2e_ms * MS), output_tokens=2)


def searched(tpot, shape, **options):
    """A search over a server whose TPOT is a function of its load."""

    async def measure(arrivals):
        load = arrivals.clients if isinstance(arrivals, Closed) else arrivals.rate
        return figures([answered(tpot(load))])

    return asyncio.run(search(measure, shape, Limit(20.0, 50.0), **options))


def test_the_search_ends_at_the_most_clients_that_hold():
    tried = searched(lambda clients: 2.0 * clients, closed, start=2, most=1000)
    assert [t.load for t in tried[:4]] == [2, 4, 8, 16]
    assert best(tried).load == 10  # 20 ms: still within
    assert "TPOT p50 32.0 ms" in tried[3].broken


def test_the_search_for_a_rate_ends_within_a_tenth():
    tried = searched(lambda rate: rate, poisson, start=0.5, most=1000.0)
    assert 18.0 <= best(tried).load <= 20.0


def test_a_search_goes_down_when_its_start_is_too_much():
    assert best(searched(lambda clients: 7.0 * clients, closed, start=16, most=64)).load == 2
    assert best(searched(lambda clients: 50.0, closed, start=16, most=64)) is None


def test_a_search_stops_at_the_most_that_it_may_try():
    tried = searched(lambda clients: 1.0, closed, start=3, most=20)
    assert [t.load for t in tried] == [3, 6, 12, 20]


def test_a_growing_queue_breaks_an_open_load():
    in_time = figures([answered(1.0, due_ms=i * 100.0) for i in range(50)])
    assert Limit(20.0).broken(Poisson(10.0), in_time) is None
    late = [answered(1.0, e2e_ms=100.0, due_ms=i * 100.0) for i in range(50)]
    late[-1] = replace(late[-1], e2e_ns=2000 * MS)
    assert "2.0 s behind after 4.9 s" in Limit(20.0).broken(Poisson(10.0), figures(late))
    assert Limit(20.0).broken(Closed(4), figures(late)) is None


def test_requests_that_are_not_served_break_any_load():
    refused = Sample(0)
    refused.fail("the queue is full")
    found = figures([*[answered(1.0)] * 3, refused])
    assert "25.0%" in Limit(20.0).broken(Closed(4), found)


def test_the_aiperf_line_is_one_command_with_a_template_that_renders():
    import jinja2

    line = aiperf_command(
        "http://127.0.0.1:8000",
        "spectool",
        Poisson(2.5),
        tokenizer="/models/a b",
        requests=7,
        max_tokens=30,
    )
    words = shlex.split(line)
    options = dict(pairwise(words))
    assert options["--tokenizer"] == "/models/a b"
    assert (options["--request-rate"], options["--arrival-pattern"]) == ("2.5", "poisson")
    template = json.loads(options["--extra-inputs"])["payload_template"]
    body = json.loads(jinja2.Template(template).render(text='say "hi"\n'))
    assert body == {"text_input": 'say "hi"\n', "stream": True, "end_id": -1, "max_tokens": 30}
