"""The life of one tritonserver process: started, ready, watched, stopped, nothing left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from toolkit.errors import RunError
from toolkit.serving import shared_memory
from toolkit.serving.ports import check_free, listens
from toolkit.serving.server_log import LogTail, reasons
from toolkit.serving.triton_wheel import TritonWheel, find_triton, server_environment

_RUN_DIR = "spectool-triton-"
_POLL_S = 0.1
_GRACE_S = 10.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002

    @property
    def http(self) -> str:
        return f"http://{self.host}:{self.http_port}"

    @property
    def grpc(self) -> str:
        return f"{self.host}:{self.grpc_port}"

    @property
    def metrics(self) -> str:
        return f"http://{self.host}:{self.metrics_port}/metrics"

    def ports(self) -> dict[str, int]:
        return {"http": self.http_port, "grpc": self.grpc_port, "metrics": self.metrics_port}


class TritonServer:
    """`with TritonServer(repository, models, address) as server: ...` is a ready server inside."""

    def __init__(
        self,
        repository: Path,
        models: Sequence[str],
        address: Address,
        *,
        log: Path | None = None,  # default: beside its run files, kept only after a failure
        timeout_s: float = 300.0,
        show_log: bool = False,  # also on stderr
        explicit: bool = False,  # models can be loaded and unloaded while it runs
        on_ready: Callable[[str], None] = lambda model: None,
        command: Sequence[str] | None = None,  # a server that is not the wheel's
        flags: Sequence[str] = (),  # more for the wheel's
    ) -> None:
        self._given, self._flags = command, flags
        self.repository, self.models, self.address = repository, tuple(models), address
        self._chosen_log = log
        self._timeout_s = timeout_s
        self._show_log = show_log
        self._explicit = explicit
        self._on_ready = on_ready
        self._run_dir: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log_file: IO[bytes] | None = None
        self._tail: LogTail | None = None
        self._shm_prefix = shared_memory.new_prefix()
        self.log = Path()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> TritonServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop(keep_log=isinstance(error, RunError))

    def start(self) -> None:
        """Return once every model of ours is ready; RunError has the reason from the log."""
        wheel = None if self._given else find_triton()
        check_free(self.address.host, self.address.ports())
        shared_memory.remove_stale()
        try:
            self._launch(wheel)
            self._wait_until_ready()
        except BaseException as error:
            self.stop(keep_log=isinstance(error, RunError))
            raise

    def poll(self) -> int | None:
        """The exit code, once the server is gone."""
        return self._process.poll() if self._process else None

    def stop(self, *, keep_log: bool = False) -> None:
        """Ask it to finish, then make sure; its shared memory and run files go too."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)
            shared_memory.remove(self._shm_prefix)
        if self._tail is not None:
            self._tail.close()
        if self._log_file is not None:
            self._log_file.close()
        self._tail = self._log_file = None
        run_dir, self._run_dir = self._run_dir, None
        if run_dir is not None:
            shutil.rmtree(run_dir / "backends", ignore_errors=True)
            (run_dir / "models").unlink(missing_ok=True)
            if not (keep_log and self.log.is_relative_to(run_dir)):
                shutil.rmtree(run_dir, ignore_errors=True)

    def _launch(self, wheel: TritonWheel | None) -> None:
        _remove_stale_run_dirs()
        prefix = f"{_RUN_DIR}{os.getpid()}-"
        self._run_dir = Path(tempfile.mkdtemp(dir=_plain_directory(), prefix=prefix))
        self.log = self._chosen_log or self._run_dir / "server.log"
        command = list(self._given or ()) if wheel is None else self._command(wheel, self._run_dir)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._log_file = self.log.open("wb")
        self._process = subprocess.Popen(
            command,
            env=server_environment(),
            stdin=subprocess.DEVNULL,
            stdout=self._log_file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us; we tell the server in good order
            preexec_fn=_die_with_parent,
        )
        if self._show_log:
            self._tail = LogTail(self.log)

    def _command(self, wheel: TritonWheel, run_dir: Path) -> list[str]:
        backends, models, address = run_dir / "backends", run_dir / "models", self.address
        wheel.link_backends(backends)
        models.symlink_to(self.repository.absolute(), target_is_directory=True)
        return [
            str(wheel.executable),
            f"--model-repository={models}",
            f"--backend-directory={backends}",
            f"--http-address={address.host}",
            f"--http-port={address.http_port}",
            f"--grpc-address={address.host}",
            f"--grpc-port={address.grpc_port}",
            f"--metrics-address={address.host}",
            f"--metrics-port={address.metrics_port}",
            "--disable-auto-complete-config",
            "--exit-timeout-secs=5",
            # A pooled request object keeps the room of the largest message that it ever held.
            "--grpc-infer-allocation-pool-size=0",
            f"--backend-config=python,shm-region-prefix-name={self._shm_prefix}",
            *(["--model-control-mode=explicit", "--load-model=*"] if self._explicit else []),
            *self._flags,
        ]

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        waiting = list(self.models)
        while time.monotonic() < deadline:
            if (code := self.poll()) is not None:
                raise RunError(self.failure(f"tritonserver ended with exit code {code}"))
            if self._is_ours():
                waiting = [model for model in waiting if not self._model_ready(model)]
                if not waiting and self._ready("/health"):
                    return
            time.sleep(_POLL_S)
        raise RunError(self.failure(f"not ready after {self._timeout_s:g} s: {', '.join(waiting)}"))

    def _is_ours(self) -> bool:
        """Another server on the port would say that it is ready.

        One that was given may listen through children or a container: there the ports were free.
        """
        return self._given is not None or listens(self.pid, self.address.http_port)

    def _model_ready(self, model: str) -> bool:
        ready = self._ready(f"/models/{model}")
        if ready:
            self._on_ready(model)
        return ready

    def _ready(self, what: str) -> bool:
        url = f"{self.address.http}/v2{what}/ready"
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def failure(self, what: str) -> str:
        """A message with the reasons that the log gives."""
        found = reasons(self.log)
        return "\n".join([what, *(f"  {line}" for line in found), f"log: {self.log}"])


def _remove_stale_run_dirs() -> None:
    """Those of killed processes; one with a log alone is there to be read."""
    for path in Path(_plain_directory()).glob(f"{_RUN_DIR}*"):
        pid = path.name.removeprefix(_RUN_DIR).partition("-")[0]
        if (path / "models").is_symlink() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(path, ignore_errors=True)


def _plain_directory() -> str:
    """A temporary directory whose name a shell leaves alone.

    Triton starts a model's stub through a shell command without quotes: a space in the path of the
    repository or of the backend makes it wait for ever. Both are reached by links from here.
    """
    chosen = tempfile.gettempdir()
    return chosen if re.fullmatch(r"[\w./+-]+", chosen, re.ASCII) else "/tmp"


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGINT and a grace, cut short by Ctrl-C; then SIGKILL for it and whatever it started."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(_GRACE_S)
    # Also after a good end: a stub that hangs has outlived its server.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _die_with_parent() -> None:
    """In the child, before it becomes the server: should we be killed, it gets a SIGINT."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
