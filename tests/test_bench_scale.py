"""The simulation in bench/scale.py on cases whose answer is known without it."""

import argparse
import importlib.util
import json
import random
from pathlib import Path

import pytest

from tests.graph.test_step import step

FILE = Path(__file__).parents[1] / "bench" / "scale.py"
spec = importlib.util.spec_from_file_location("bench_scale", FILE)
scale = importlib.util.module_from_spec(spec)
spec.loader.exec_module(scale)


def test_makespan_of_a_case_done_by_hand():
    """Two GPUs; 8 s beside 5 + 3 s. As they come: 5 and 3 s first, then 8 s behind the 3."""
    steps = [step("a", gpus=1, seconds=5), step("b", gpus=1, seconds=3)]
    steps.append(step("c", gpus=1, seconds=8))
    node = scale.Node(id="n", name="n", cpus=8, gpus=2)
    found = scale.compare_builds(steps, [node])
    assert found["makespan_s"] == 8
    assert found["as_they_come_s"] == 11
    assert found["critical_path_s"] == 8
    assert found["perfect_packing_s"] == 8


def test_a_hundred_builds_stay_near_the_bound():
    steps = scale.many_builds(100, scale.RECORDED, 100.0, random.Random(1))
    found = scale.compare_builds(steps, scale.nodes_of(4))
    assert found["engines"] >= 100
    assert 1 <= found["over_the_bound"] < 1.3
    assert found["over_the_bound"] <= found["as_they_come_over_the_bound"]


def measured(schedule, survival):
    """Steps of 10 ms plus 1 ms a drafted token plus 1 ms a request beyond the first."""
    points = [
        {"batch_size": b, "drafted": d, "total_ns": (10 + d + b - 1) * 1e6}
        for b in (1, 4)
        for d in (0, 4)
    ]
    cell = {"k": 4, "domain": "x", "pooled": False, "acceptance_by_position_joint": survival}
    trace = {"step_times": points, "prefill_ns_per_token": {"1": 1e6}, "summary": [cell]}
    document = {"recipe": {"name": "r"}, "draft_length_schedule": schedule, "trace": trace}
    return scale.Measured(json.dumps(document))


OPTIONS = argparse.Namespace(
    replicas=1, requests=1, seed=0, prompt_tokens=10, output_tokens=11, tpot_limit=1.5, loads=[0.1]
)  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "survival", "tpot_ms"),
    [
        ("off", [1.0] * 4, 10.0),  # ten steps of 10 ms for ten tokens
        ("fixed", [0.0] * 4, 14.0),  # every draft of four is wrong and costs 4 ms
        ("fixed", [1.0] * 4, 2.8),  # two steps of 14 ms, five tokens each
        ("scheduled", [1.0] * 4, 2.8),
    ],
)
def test_a_lone_request_takes_what_the_table_says(mode, survival, tpot_ms):
    tpots, end = scale.fleet(
        measured([[1, 4], [3, 0]], survival), [1.0], mode, OPTIONS, random.Random(0)
    )
    assert tpots == [pytest.approx(tpot_ms / 1e3)]
    assert end == pytest.approx(1 + 0.010 + tpot_ms * 10 / 1e3)  # prefill: ten tokens of 1 ms


def test_the_schedule_drafts_by_the_requests_that_run():
    found = measured([[1, 4], [3, 0]], [1.0] * 4)
    assert [found.draft_len("scheduled", active) for active in (1, 2, 3, 9)] == [4, 4, 0, 0]
    assert [found.draft_len("fixed", active) for active in (1, 9)] == [4, 4]
    assert found.step(2, 2) == pytest.approx(0.013)  # 10 + 2 + 1 ms


def test_every_request_is_served_once_and_goodput_falls_under_load():
    found = measured([[1, 4], [3, 0]], [0.5, 0.25, 0.1, 0.0])
    options = argparse.Namespace(**{**vars(OPTIONS), "requests": 200, "loads": [0.2, 3.0]})
    rows = scale.serving(found, options, random.Random(0))
    assert [row["speculation"] for row in rows] == ["off", "fixed", "scheduled"] * 2
    assert all(row["goodput_per_s"] <= row["requests_per_s"] * 1.2 for row in rows)
    assert rows[0]["tpot_p50_ms"] < rows[3]["tpot_p50_ms"]  # steps of a full batch take longer
