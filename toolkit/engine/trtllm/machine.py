"""The machine that builds: which trtllm-build, TensorRT, CUDA and GPUs it has.

Asked of the interpreter that runs trtllm-build, whose packages need not be ours, and without
importing tensorrt_llm, which takes a GPU and ten seconds.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from toolkit.engine.trtllm.command import PROGRAM
from toolkit.engine.trtllm.gpus import architecture, shown
from toolkit.errors import BuildError, InputError, MissingDependencyError
from toolkit.recipe.schema import Recipe

_ASK = """
import json, re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
def of(*names):
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            pass
torch = find_spec("torch")
text = Path(torch.origin).with_name("version.py").read_text() if torch and torch.origin else ""
cuda = re.search(r"^cuda.*=.*'([0-9.]+)'", text, re.M)
print(json.dumps({
    "tensorrt_llm": of("tensorrt_llm"),
    "tensorrt": of("tensorrt", "tensorrt_cu13", "tensorrt_cu12"),
    "cuda": cuda and cuda[1],
}))
"""
_TIMEOUT_S = 60


@dataclass(frozen=True)
class Machine:
    """What decides, beside checkpoint and flags, which bytes a build writes."""

    program: Path
    tensorrt_llm: str
    tensorrt: str | None
    cuda: str | None
    sm: int  # architecture of the GPUs
    gpus: tuple[str, ...]  # their indices, as CUDA_VISIBLE_DEVICES takes them

    def spec(self) -> dict[str, str | None]:
        """The part of an engine's digest that is the machine's."""
        return {
            "tensorrt_llm": self.tensorrt_llm,
            "tensorrt": self.tensorrt,
            "cuda": self.cuda,
            "gpu": shown(self.sm),
        }


def find_machine() -> Machine:
    """This machine; MissingDependencyError for what it lacks."""
    found = shutil.which(PROGRAM)
    if found is None:
        raise MissingDependencyError(
            f"{PROGRAM} is not on PATH; build on a GPU machine with TensorRT-LLM "
            "(pip install 'spectool[tensorrt]', or NVIDIA's tensorrt-llm container)"
        )
    program = Path(found)
    environment = ("PATH", "CUDA_VISIBLE_DEVICES")
    return _ask(
        program, program.stat().st_mtime_ns, tuple(os.environ.get(name) for name in environment)
    )


@lru_cache(maxsize=8)
def _ask(program: Path, changed: int, environment: tuple[str | None, ...]) -> Machine:
    answer = json.loads(_output([*_interpreter(program), "-c", _ASK]).splitlines()[-1])
    if not answer["tensorrt_llm"]:
        raise MissingDependencyError(
            f"{program}: its Python has no package tensorrt_llm, so its release is not known; "
            "reinstall tensorrt_llm"
        )
    indices, sm = _gpus()
    return Machine(program, answer["tensorrt_llm"], answer["tensorrt"], answer["cuda"], sm, indices)


def require_machine(recipe: Recipe) -> Machine:
    """This machine, if it is the one that the recipe is for."""
    machine, problems = find_machine(), []
    if not same_release(recipe.tensorrt_llm, machine.tensorrt_llm):
        problems.append(
            f"tensorrt_llm: the recipe says {recipe.tensorrt_llm}, {machine.program} is "
            f"{machine.tensorrt_llm}; set tensorrt_llm to that, or install the other"
        )
    gpu = recipe.tensorrt.gpu
    if gpu and (wanted := architecture(gpu)) and wanted != machine.sm:
        problems.append(
            f"tensorrt.gpu: the recipe is for {gpu} ({shown(wanted)}), this machine has "
            f"{shown(machine.sm)}; engines of one architecture do not run on another"
        )
    if problems:
        raise InputError("\n".join(problems))
    return machine


def same_release(said: str, installed: str) -> bool:
    """`1.2.1` is 1.2.1 and 1.2.1+cu129, not 1.2.1rc2; `1.2` is every 1.2.x."""
    installed = installed.partition("+")[0]
    return installed == said or (said.count(".") == 1 and installed.startswith(f"{said}."))


def _interpreter(program: Path) -> list[str]:
    """The words after #! of a console script."""
    with program.open("rb") as file:
        first = file.readline(4096)
    if not first.startswith(b"#!"):
        raise MissingDependencyError(
            f"{program}: not a Python script, so its release is not known; is this TensorRT-LLM's?"
        )
    return shlex.split(first[2:].decode(errors="replace"))


def _gpus() -> tuple[tuple[str, ...], int]:
    """Visible GPUs and their one architecture."""
    if shutil.which("nvidia-smi") is None:
        raise MissingDependencyError(
            "no NVIDIA GPU here (no nvidia-smi): engines need one to build"
        )
    lines = _output(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]).split()
    by_index = {str(index): architecture(text) for index, text in enumerate(lines)}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = list(by_index) if visible is None else [v for v in visible.split(",") if v.strip()]
    # An id that is no index (GPU-..., MIG-...) cannot be told apart: take all architectures.
    known = {by_index.get(index) for index in chosen if index in by_index} or set(by_index.values())
    found = sorted({sm for sm in known if sm is not None})
    if not chosen or not found:
        raise MissingDependencyError("no NVIDIA GPU is visible here: engines need one to build")
    if len(found) > 1:
        raise InputError(
            f"GPUs of different architectures: {', '.join(map(shown, found))}; choose those of one "
            "with CUDA_VISIBLE_DEVICES"
        )
    return tuple(chosen), found[0]


def _output(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except subprocess.CalledProcessError as error:
        line = (error.stderr or error.stdout or "").strip().splitlines()[-1:] or ["no output"]
        raise BuildError(f"{command[0]}: exit code {error.returncode}: {line[0]}") from None
    except subprocess.TimeoutExpired:
        raise BuildError(f"{command[0]}: no answer after {_TIMEOUT_S} s") from None
    except OSError as error:
        raise MissingDependencyError(f"{command[0]}: {error.strerror}") from None
    return done.stdout
