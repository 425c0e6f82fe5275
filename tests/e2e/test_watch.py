"""A rebuilt repository comes into a running server while clients stream."""

from __future__ import annotations

import asyncio
import itertools
import json
import queue
import signal
import subprocess
import threading
import time

import pytest

from tests.e2e.test_server import serve_command
from tests.serving.conftest import with_layout
from tests.serving.test_ports import free_ports
from toolkit.engine.built import BuiltModels
from toolkit.errors import RunError
from toolkit.serving.client import Ask, generate
from toolkit.serving.load.arrivals import Closed, Until
from toolkit.serving.load.drive import drive
from toolkit.serving.load.endpoint import Endpoint
from toolkit.serving.load.jobs import Job
from toolkit.serving.repository import write_repository
from toolkit.serving.server import Address

pytestmark = pytest.mark.triton

ASKS = [Ask(text_input=f"n{i}", max_tokens=240, end_id=-1, stream=True) for i in range(6)]


def with_draft_len(built: BuiltModels, longest: int) -> BuiltModels:
    layout = with_layout(built, "inprocess")
    speculation = layout.recipe.speculation.model_copy(update={"max_draft_len": longest})
    recipe = layout.recipe.model_copy(update={"speculation": speculation})
    return BuiltModels(recipe, built.engines, built.tokenizers)


class FakeTerminal:
    """Lines that a process writes to stderr, as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._lines: queue.Queue[str] = queue.Queue()
        self._thread = threading.Thread(target=self._read, args=(process.stderr,), daemon=True)
        self._thread.start()

    def _read(self, stream) -> None:
        with stream:
            for line in stream:
                self._lines.put(line)

    def wait_for(self, text: str, timeout: float = 60.0) -> str:
        said, deadline = "", time.monotonic() + timeout
        while text not in said:
            said += self._lines.get(timeout=max(deadline - time.monotonic(), 0.01))
        return said


class Clients:
    """Stream without a pause until told to stop."""

    def __init__(self, address: Address) -> None:
        self._address, self._stop = address, threading.Event()
        self.failures: list[str] = []
        self.texts: dict[str, set[str]] = {}
        self.answered = 0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._work()))
        self._thread.start()

    async def _work(self) -> None:
        jobs = itertools.cycle(Job(ask) for ask in ASKS)
        async with await Endpoint.open(self._address.grpc) as endpoint:
            while not self._stop.is_set():
                until = Until(requests=12)
                await drive(endpoint, jobs, Closed(6), until, timeout_s=60, on_done=self._done)

    def _done(self, job, sample) -> None:
        self.answered += 1
        if sample.outcome == "ok":
            self.texts.setdefault(job.ask.text_input, set()).add(sample.text)
        else:
            self.failures.append(f"{sample.outcome}: {sample.message}")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def longest_draft(address: Address) -> int:
    """What the models at work now refuse to exceed."""
    with pytest.raises(RunError) as error:
        generate(address.http, "spectool", Ask(text_input="a", max_tokens=1, num_draft_tokens=99))
    return int(str(error.value).partition("at most ")[2].split()[0])


@pytest.mark.timeout(180)
def test_no_request_is_dropped_while_models_are_replaced(built, tmp_path):
    repository = write_repository(with_draft_len(built, 4), tmp_path / "repo")
    address = Address("127.0.0.1", *free_ports(3))
    process = subprocess.Popen(
        serve_command(repository, address, "--watch", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    terminal = FakeTerminal(process)
    try:
        assert json.loads(process.stdout.readline())["entry"] == "spectool"
        assert longest_draft(address) == 4
        clients = Clients(address)
        for longest in (2, 3):
            write_repository(with_draft_len(built, longest), repository)
            terminal.wait_for("repository rebuilt: loaded spectool")
            assert longest_draft(address) == longest
        write_repository(with_draft_len(built, 1), repository)
        broken = repository / "spectool" / "1" / "model.py"
        broken.write_text("raise ValueError('boom at import')\n")
        said = terminal.wait_for("log: ")
        clients.stop()
        assert "not reloaded: load spectool" in said
        assert "boom at import" in said
        assert longest_draft(address) == 3  # the last one that loaded still serves
        assert clients.failures == []
        assert clients.answered >= 24
        assert {len(texts) for texts in clients.texts.values()} == {1}
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()
