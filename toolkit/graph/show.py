"""A graph for people and programs: text, JSON, and Mermaid for a Markdown page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolkit.graph.schedule import describe
from toolkit.graph.step import Graph, Step


def to_json(graph: Graph) -> dict[str, Any]:
    """Steps in an order in which they could run one by one."""
    return {
        "steps": [graph.steps[name].to_json() for name in graph.order],
        "critical_path": [step.id for step in critical_path(graph)],
    }


def critical_path(graph: Graph) -> list[Step]:
    """The steps that decide when everything is done, however many machines there are."""
    path: list[Step] = []
    names: Sequence[str] = [step.id for step in graph if not step.inputs]
    while names:
        longest = graph.steps[max(names, key=lambda name: graph.tails[name])]
        path.append(longest)
        names = graph.users[longest.id]
    return [step for step in path if not step.done]


def rows(graph: Graph) -> list[list[str]]:
    """Number, title, state, needs and the numbers of the steps before it."""
    numbers = {name: str(place) for place, name in enumerate(graph.order, 1)}
    return [
        [
            numbers[name],
            graph.steps[name].title,
            "done" if graph.steps[name].done else "to do",
            describe(graph.steps[name].needs),
            " ".join(sorted((numbers[wanted] for wanted in graph.steps[name].inputs), key=int)),
        ]
        for name in graph.order
    ]


def mermaid(graph: Graph) -> str:
    """A flowchart; what is done already is grey."""
    names = {name: f"s{place}" for place, name in enumerate(graph.order, 1)}
    lines = ["flowchart LR"]
    for name in graph.order:
        step = graph.steps[name]
        style = ":::done" if step.done else ""
        text = f"{_plain(step.title)}<br/><small>{_plain(describe(step.needs))}</small>"
        lines.append(f'  {names[name]}["{text}"]{style}')
    lines += [
        f"  {names[wanted]} --> {names[name]}"
        for name in graph.order
        for wanted in graph.steps[name].inputs
    ]
    return "\n".join([*lines, "  classDef done fill:#eee,stroke:#999,color:#666"])


def _plain(text: str) -> str:
    """Nothing in it that Mermaid or HTML would read: their entities stand for such characters."""
    return "".join(c if c.isalnum() or c in " _-+.,:/()=" else f"#{ord(c)};" for c in text)
