"""A served model under clients that stream, vanish and lie. `bench/soak.py` runs it for long."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.e2e.conftest import write_character_tokenizer
from tests.e2e.processes import memory_mb
from tests.e2e.stalls import StallWatch
from tests.engine_fixtures import tiny_built
from tests.serving.conftest import with_layout
from tests.serving.test_ports import free_ports
from toolkit.backends.runtime import open_runtime
from toolkit.engine.built import BuiltModels
from toolkit.errors import RunError
from toolkit.serving.client import Ask, metrics
from toolkit.serving.load.arrivals import Closed, Until
from toolkit.serving.load.drive import drive
from toolkit.serving.load.endpoint import Endpoint
from toolkit.serving.load.figures import Figures, figures
from toolkit.serving.load.jobs import Job
from toolkit.serving.load.sample import Sample
from toolkit.serving.repository import repository_manifest, write_repository
from toolkit.serving.server import Address, TritonServer
from toolkit.speculation.request import Request

_SYSTEM = "You are a helpful assistant who answers in one word only. "  # a beginning to share
_WARM_UP = 0.2  # of the time: memory is compared from then on
_MEMORY_EVERY_S = 1.0


def _text(value: bytes) -> NDArray[Any]:
    return np.array([[value]], dtype=object)


def _number(value: float, kind: Any = np.int32) -> NDArray[Any]:
    return np.array([[value]], dtype=kind)


# What a client may send instead of the inputs that the model declares; each must be refused.
HOSTILE: dict[str, dict[str, NDArray[Any]]] = {
    "negative length": {"max_tokens": _number(-5)},
    "length zero": {"max_tokens": _number(0)},
    "length as a float": {"max_tokens": _number(8.0, np.float32)},
    "length as text": {"max_tokens": _text(b"8")},
    "text as a number": {"text_input": _number(7)},
    "no bytes at all": {"text_input": np.zeros((1, 0), dtype=object)},
    "a batch of two": {"text_input": np.array([[b"a"], [b"b"]], dtype=object)},
    "not UTF-8": {"text_input": _text(b"ab\xff\xfe\xc3")},
    "an empty prompt": {"text_input": _text(b"")},
    "ten megabytes of prompt": {"text_input": _text(b"a" * 10_000_000)},
    "temperature nan": {"temperature": _number(float("nan"), np.float32)},
    "temperature below zero": {"temperature": _number(-1.0, np.float32)},
    "top_p above one": {"top_p": _number(1.5, np.float32)},
    "top_k below zero": {"top_k": _number(-3)},
    "too long a draft": {"num_draft_tokens": _number(10_000)},
    "a negative draft": {"num_draft_tokens": _number(-1)},
    "a thousand stop words": {"stop_words": np.array([[b"a"] * 1000], dtype=object)},
    "an endless stop word": {"stop_words": np.array([[b"a" * 100_000]], dtype=object)},
    "an end token below -1": {"end_id": _number(-7)},
    "an unknown input": {"text_inputs": _text(b"a")},
    "three dimensions": {"max_tokens": np.ones((1, 1, 1), np.int32)},
}
# It costs 20 times as much as the others.
_RARE = {"ten megabytes of prompt"}


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """How bad the days are."""

    layout: str = "inprocess"
    seconds: float = 600.0
    clients: int = 32
    cancel_rate: float = 0.2
    hostile_rate: float = 0.05
    prompts: int = 64
    seed: int = 0


@dataclass
class Report:
    """What happened; `problems` is empty after a good run."""

    conditions: Conditions
    good: int = 0
    wrong_texts: list[str] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)  # of good requests
    cancelled: int = 0
    hostile: int = 0
    hostile_answered: Counter[str] = field(default_factory=Counter)  # must not happen
    hung: int = 0
    held: dict[str, float] = field(default_factory=dict)  # gauges in the end; all must be 0
    memory_mb: list[float] = field(default_factory=list)  # of the server, over time
    figures: Figures | None = None

    @property
    def memory_growth(self) -> float:
        """The last fifth over the fifth that follows the warm-up."""
        part = max(len(self.memory_mb) // 5, 1)
        first, last = self.memory_mb[part : 2 * part], self.memory_mb[-part:]
        return float(np.median(last) / np.median(first) - 1) if first else 0.0

    def problems(self) -> list[str]:
        found = [f"wrong text: {text}" for text in self.wrong_texts[:5]]
        found += [f"{n} good request(s) failed: {what}" for what, n in self.failures.items()]
        found += [f"{n} x answered though hostile: {w}" for w, n in self.hostile_answered.items()]
        found += [f"still held: {name} {value}" for name, value in self.held.items() if value]
        if self.hung:
            found.append(f"{self.hung} request(s) got no answer in time")
        if self.conditions.seconds >= 60 and abs(self.memory_growth) > 0.05:
            found.append(f"memory changed by {self.memory_growth:.1%}")
        return found

    def to_json(self) -> dict[str, Any]:
        document = asdict(self) | {
            "figures": self.figures.to_json() if self.figures else None,
            "memory_growth": self.memory_growth,
            "problems": self.problems(),
        }
        document["memory_mb"] = self.memory_mb[:: max(len(self.memory_mb) // 60, 1)]
        return document

    def describe(self) -> str:
        c, f = self.conditions, self.figures
        assert f is not None
        lines = [
            f"{c.layout}: {c.clients} clients, {f.wall_s:.0f} s, {f.requests} requests, "
            f"{f.output_throughput:.0f} tokens/s",
            f"good      {self.good} answered, {len(self.wrong_texts)} wrong, "
            f"{sum(self.failures.values())} failed",
            f"cancelled {self.cancelled}",
            f"hostile   {self.hostile} refused, {sum(self.hostile_answered.values())} answered",
            f"hung      {self.hung}",
            f"held      {self.held}",
            f"memory    {self.memory_mb[0]:.0f} MB at first, {self.memory_mb[-1]:.0f} MB at last, "
            f"{self.memory_growth:+.1%} after the warm-up",
        ]
        return "\n".join([*lines, *(f"PROBLEM   {p}" for p in self.problems())])


def soak(
    area: Path,
    conditions: Conditions,
    *,
    say: Callable[[str], None] = lambda text: None,
    stalls: Path | None = None,  # where to say what the server did when it stopped answering
) -> Report:
    """Build tiny models, serve them, and let the clients loose."""
    built = tiny_built(area, max_draft_len=4)
    for directory in built.tokenizers.values():
        write_character_tokenizer(directory)
    built = with_layout(built, conditions.layout)
    asks = _asks(conditions)
    say("plain greedy decoding of every prompt ...")
    wanted = _plain(built, asks)
    repository = write_repository(built, area / "repository")
    manifest = repository_manifest(repository)
    assert manifest is not None
    address = Address("127.0.0.1", *free_ports(3))
    server = TritonServer(repository, list(manifest["models"]), address, timeout_s=300)
    report = Report(conditions)
    with server, StallWatch(server, stalls) if stalls else nullcontext():
        say(f"serving; {conditions.seconds:.0f} s of load ...")
        asyncio.run(_load(server, manifest["entry"], asks, wanted, report))
        if (code := server.poll()) is not None:
            # Raised in here, so that the server keeps its log.
            raise RunError(server.failure(f"tritonserver ended by itself with exit code {code}"))
        report.held = _held(address)
    return report


def _asks(conditions: Conditions) -> list[Ask]:
    rng = random.Random(conditions.seed)
    return [
        Ask(
            text_input=f"{_SYSTEM if i % 3 else ''}Q{i}: {'?' * rng.randint(1, 20)}",
            max_tokens=rng.randint(1, 120),
            end_id=(None, -1)[i % 2],
            num_draft_tokens=(None, None, 0, 2)[i % 4],
            stream=True,
            return_perf_metrics=True,
            return_num_output_tokens=True,
        )
        for i in range(conditions.prompts)
    ]


def _plain(built: BuiltModels, asks: list[Ask]) -> dict[str, str]:
    """Text of every prompt by plain greedy decoding, one at a time, nothing shared."""
    runtime = open_runtime(built)
    loop = runtime.loop(draft_len=0)
    texts = {}
    for ask in asks:
        stop = frozenset() if ask.end_id == -1 else runtime.tokenizer.eos_ids
        request = Request(
            tuple(runtime.tokenizer.encode(ask.text_input)), ask.max_tokens, stop_tokens=stop
        )
        [output] = loop.generate([request])
        texts[ask.text_input] = runtime.tokenizer.decode(output.tokens)
    return texts


def _jobs(asks: list[Ask], conditions: Conditions) -> Iterator[Job]:
    rng = random.Random(conditions.seed + 1)
    usual = [name for name in HOSTILE if name not in _RARE]
    while True:
        ask = rng.choice(asks)
        if rng.random() < conditions.hostile_rate:
            rare = rng.random() < 0.02
            yield Job(ask, raw=HOSTILE[rng.choice(sorted(_RARE) if rare else usual)])
        elif rng.random() < conditions.cancel_rate:
            yield Job(ask, cancel_after=rng.randint(0, max(ask.max_tokens // 8, 1)))
        else:
            yield Job(ask)


async def _load(
    server: TritonServer, model: str, asks: list[Ask], wanted: dict[str, str], report: Report
) -> None:
    conditions = report.conditions

    def done(job: Job, sample: Sample) -> None:
        if "DEADLINE" in sample.message:
            report.hung += 1
        elif job.raw:
            report.hostile += 1
            if sample.outcome == "ok":
                report.hostile_answered[_name(job)] += 1
        elif sample.outcome == "cancelled":
            report.cancelled += 1
        elif sample.outcome != "ok":
            report.failures[sample.message] += 1
        elif sample.text != wanted[job.ask.text_input]:
            report.wrong_texts.append(f"{job.ask.text_input!r} gave {sample.text!r}")
        else:
            report.good += 1
        sample.text = sample.message = ""

    async with await Endpoint.open(server.address.grpc, model) as endpoint:
        watching = asyncio.create_task(_watch_memory(server.pid, report))
        samples = await drive(
            endpoint,
            _jobs(asks, conditions),
            Closed(conditions.clients),
            Until(seconds=conditions.seconds),
            timeout_s=120.0,
            on_done=done,
        )
        watching.cancel()
    report.figures = figures(samples)


def _name(job: Job) -> str:
    return next(name for name, raw in HOSTILE.items() if raw is job.raw)


async def _watch_memory(pid: int, report: Report) -> None:
    while True:
        report.memory_mb.append(memory_mb(pid))
        await asyncio.sleep(_MEMORY_EVERY_S)


def _held(address: Address) -> dict[str, float]:
    """Gauges of what requests hold, once they had time to let go."""
    deadline = time.monotonic() + 30
    while True:
        held = {
            name: value
            for name, value in metrics(address.metrics).items()
            if name.startswith(("spectool_active_sequences", "kv_cache_utilization"))
        }
        if not any(held.values()) or time.monotonic() > deadline:
            return held
        time.sleep(0.2)
