"""Who runs next and where, on cases small enough to know the answer."""

import random

import pytest

from tests.graph.test_step import step
from toolkit.errors import InputError, RunError
from toolkit.graph.schedule import Node, Schedule, why_not
from toolkit.graph.step import Graph, Needs


def node(name, cpus=1, gpus=0, **more):
    return Node(id=name, name=name, cpus=cpus, gpus=gpus, **more)


def started(schedule, *nodes):
    return [(step.id, node.name) for step, node in schedule.start(nodes)]


def test_what_most_waits_for_goes_first():
    graph = Graph([
        step("short", seconds=5), step("first", seconds=1), step("long", "first", seconds=9),
    ])  # fmt: skip
    schedule, only = Schedule(graph), node("n")
    assert started(schedule, only) == [("first", "n")]  # 1 + 9 s are behind it, 5 s behind short
    assert started(schedule, only) == []
    schedule.finish("first")
    assert started(schedule, only) == [("long", "n")]
    schedule.finish("long")
    assert not schedule.over
    assert started(schedule, only) == [("short", "n")]
    schedule.finish("short")
    assert schedule.over


def test_steps_without_a_longer_way_keep_their_order():
    schedule = Schedule(Graph([step("b"), step("a"), step("c")]))
    assert started(schedule, node("n", cpus=3)) == [("b", "n"), ("a", "n"), ("c", "n")]


def test_gpus_are_left_to_those_who_need_them():
    graph = Graph([step("convert"), step("engine", gpus=1)])
    nodes = [node("gpus", cpus=4, gpus=1), node("plain", cpus=1)]
    assert started(Schedule(graph), *nodes) == [("convert", "plain"), ("engine", "gpus")]


def test_small_engines_share_a_node_so_that_a_large_one_finds_another_whole():
    graph = Graph([step("a", gpus=1), step("b", gpus=1), step("large", gpus=4)])
    nodes = [node("x", cpus=8, gpus=4), node("y", cpus=8, gpus=4)]
    assert started(Schedule(graph), *nodes) == [("a", "x"), ("b", "x"), ("large", "y")]


def test_small_steps_do_not_starve_a_large_one():
    """`large` waits for both GPUs; while one is busy, the other is kept for it."""
    small = [step(f"s{i}", gpus=1, seconds=1) for i in range(4)]
    schedule = Schedule(Graph([step("now", gpus=1), step("large", gpus=2, seconds=9), *small]))
    only = node("n", cpus=8, gpus=2)
    schedule.graph.tails  # noqa: B018 - computed
    assert started(schedule, only) == [("large", "n")]
    schedule.finish("large")
    schedule = Schedule(Graph([step("now", gpus=1, seconds=20), step("large", gpus=2, seconds=9),
                               *small, step("cpu only", seconds=1)]))  # fmt: skip
    assert started(schedule, only) == [("now", "n"), ("cpu only", "n")]
    schedule.finish("now")
    assert started(schedule, only) == [("large", "n")]


def test_a_measurement_has_the_node_to_itself():
    graph = Graph([step("convert", seconds=9), step("measure", alone=True)])
    schedule, only = Schedule(graph), node("n", cpus=8)
    assert started(schedule, only) == [("convert", "n")]
    schedule.finish("convert")
    assert started(schedule, only) == [("measure", "n")]
    assert Schedule(Graph([step("measure", alone=True, seconds=9), step("convert")])).start(
        [only]
    )[0][0].id == "measure"  # fmt: skip


def test_labels_decide_where_a_step_may_run():
    graph = Graph([step("e", gpus=1, labels={"gpu": "sm_90", "tensorrt_llm": "1.2"})])
    old = node("old", gpus=1, labels={"gpu": "sm_90", "tensorrt_llm": "1.1.0"})
    other = node("a100", gpus=1, labels={"gpu": "sm_80", "tensorrt_llm": "1.2.1"})
    right = node("h100", gpus=1, labels={"gpu": "sm_90", "tensorrt_llm": "1.2.1+cu129"})
    assert started(Schedule(graph), old, other) == []
    assert started(Schedule(graph), old, other, right) == [("e", "h100")]
    with pytest.raises(InputError) as refused:
        Schedule(graph).refuse_impossible([old, other])
    assert str(refused.value).splitlines()[1:] == [
        "  make e needs 1 CPU, 1 GPU, gpu sm_90, tensorrt_llm 1.2; "
        "old has tensorrt_llm 1.1.0, a100 has gpu sm_80"
    ]


@pytest.mark.parametrize(
    ("needs", "here", "reason"),
    [
        ({"gpus": 2}, {"gpus": 1}, "1 GPU"),
        ({"cpus": 9}, {"cpus": 8}, "8 CPUs"),
        ({"memory": 3 * 10**9}, {"memory": 2 * 10**9}, "2.0 GB of memory"),
        ({"labels": {"gpu": "sm_90"}}, {"labels": {}}, "gpu none"),
        ({"labels": {"gpu": "sm_90"}}, {}, None),  # planned for this machine
        ({"paths": ("/w",)}, {"paths": frozenset()}, "no /w"),
        ({"paths": ("/w",)}, {"paths": frozenset(["/w"])}, None),
        ({"paths": ("/w",)}, {}, None),
    ],
)
def test_why_a_node_will_not_do(needs, here, reason):
    assert why_not(Needs(**needs), node("n", **{"cpus": 8, **here})) == reason


def test_a_lost_step_runs_again_on_another_node():
    schedule = Schedule(Graph([step("a")]))
    assert started(schedule, node("x")) == [("a", "x")]
    schedule.lost("a")
    assert started(schedule, node("y")) == [("a", "y")]
    schedule.lost("a")
    assert started(schedule, node("z")) == [("a", "z")]
    with pytest.raises(RunError, match="make a: its node was lost 3 times, last z"):
        schedule.lost("a")


def test_without_nodes_nothing_hangs():
    with pytest.raises(InputError, match="there is no node left"):
        Schedule(Graph([step("a")])).refuse_impossible([])


def test_random_graphs_end_and_never_take_more_than_there_is():
    rng = random.Random(7)
    for _ in range(100):
        steps = [
            step(
                f"s{i}", *rng.sample([f"s{j}" for j in range(i)], min(i, rng.randrange(3))),
                cpus=rng.randint(1, 3), gpus=rng.randint(0, 4), alone=rng.random() < 0.1,
                seconds=rng.random() * 9,
            )
            for i in range(rng.randint(1, 30))
        ]  # fmt: skip
        nodes = [node(f"n{i}", cpus=rng.randint(3, 8), gpus=4) for i in range(rng.randint(1, 4))]
        schedule, running, done = Schedule(Graph(steps)), {}, set()
        while not schedule.over:
            for one, where in schedule.start(nodes):
                assert one.id not in running
                assert done.issuperset(one.inputs)
                running[one.id] = (one.needs, where)
            assert running, "nothing runs and nothing starts"
            for where in nodes:
                here = [needs for needs, at in running.values() if at is where]
                assert sum(needs.gpus for needs in here) <= where.gpus
                assert sum(needs.cpus for needs in here) <= where.cpus
                assert len(here) == 1 or not any(needs.alone for needs in here)
            ended = rng.choice(sorted(running))
            del running[ended]
            done.add(ended)
            schedule.finish(ended)
        assert len(done) == len(steps)
