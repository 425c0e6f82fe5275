"""The image that serves a repository, and the command that runs it. Arguments are lists throughout.

NVIDIA's images hold the server and TensorRT-LLM; what is put on top is the spectool that wrote the
repository, whose code the models are. For backend cpu the server comes with its packages too.
"""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path

from toolkit import __version__
from toolkit.errors import InputError
from toolkit.serving.deploy.bundle import Bundle
from toolkit.serving.deploy.images import image_of
from toolkit.serving.launch_script import SCRIPT
from toolkit.serving.server import Address

CODE, DOCKERFILE = "spectool", "Dockerfile"
SHM_BYTES = 1 << 30  # tensors go from model to model through it; Docker gives 64 MiB by itself
_EXTRAS = {"cpu": ("cpu", "triton")}  # beyond what spectool always needs

_TEXT = """\
# {what}, with the code that wrote it.
FROM {image}
ENV PIP_BREAK_SYSTEM_PACKAGES=1 PYTHONUNBUFFERED=1
COPY {code}/requirements.txt /opt/spectool/
RUN ["python3", "-m", "pip", "install", "--no-cache-dir", "-r", "/opt/spectool/requirements.txt"]
COPY {code}/toolkit /opt/spectool/toolkit
RUN ["python3", "-c", "import pathlib, sysconfig; pathlib.Path(sysconfig.get_path('purelib'), \
'spectool.pth').write_text('/opt/spectool')"]
"""


def write_context(bundle: Bundle, directory: Path) -> None:
    """Dockerfile and the code that it copies."""
    code = directory / CODE
    code.mkdir(parents=True)
    package = Path(__file__).resolve().parents[2]
    shutil.copytree(package, code / "toolkit", ignore=shutil.ignore_patterns("__pycache__"))
    needs = requirements(_EXTRAS.get(bundle.recipe.backend, ()))
    (code / "requirements.txt").write_text("".join(f"{need}\n" for need in needs))
    text = _TEXT.format(
        what=f"{bundle.recipe.name}, layout {bundle.layout}",
        image=image_of(bundle.recipe),
        code=CODE,
    )
    (directory / DOCKERFILE).write_text(text, encoding="utf-8")


def image_name(bundle: Bundle) -> str:
    """What the image is called that is built here: by backend, spectool and what it stands on."""
    base = image_of(bundle.recipe).partition("@")[0].rpartition("/")[2].replace(":", "-")
    return f"spectool-{bundle.recipe.backend}:{__version__}-{base}"


def build_command(bundle: Bundle, context: Path) -> list[str]:
    return ["docker", "build", "--tag", image_name(bundle), str(context)]


def run_command(bundle: Bundle, address: Address, container: str) -> list[str]:
    """`docker run` in the foreground, listening where `address` says on this machine only."""
    words = ["docker", "run", "--rm", "--init", "--name", container]
    words += ["--shm-size", str(SHM_BYTES), "--env", "SPECTOOL_HOST=0.0.0.0"]
    if bundle.recipe.backend == "pytorch":
        # The target comes from the hub, into a volume that outlives the container.
        words += ["--mount", "type=volume,source=huggingface,target=/root/.cache/huggingface"]
        words += ["--env", "HF_TOKEN"]
    if bundle.gpus:
        words += ["--gpus", "all", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]
    inside = bundle.recipe.serve
    for outside, port in zip(
        (address.http_port, address.grpc_port, address.metrics_port),
        (inside.http_port, inside.grpc_port, inside.metrics_port),
        strict=True,
    ):
        words += ["--publish", f"{address.host}:{outside}:{port}"]
    for place in mounts(bundle):
        words += ["--mount", f"type=bind,source={place},target={place},readonly"]
    return [*words, image_name(bundle), *inner_command(bundle)]


def mounts(bundle: Bundle) -> list[Path]:
    """What a container sees where it is here; InputError for names that docker cannot take."""
    places = [bundle.repository, *bundle.outside]
    for place in places:
        if "," in str(place) or '"' in str(place):
            raise InputError(f"{place}: docker takes no comma and no quote in a mounted path")
    return places


def inner_command(bundle: Bundle) -> list[str]:
    """What runs in the container."""
    if bundle.recipe.backend != "cpu":
        return [str(bundle.repository / SCRIPT)]
    code = "from toolkit.cli import main; main()"
    return ["python3", "-c", code, "serve", str(bundle.repository), "--host", "0.0.0.0"]


def requirements(extras: tuple[str, ...] = ()) -> list[str]:
    """What this spectool was installed with: its own packages and those of the extras."""
    found = []
    for need in metadata.requires("spectool") or ():
        name, _, marker = need.partition(";")
        wanted = not marker.strip() or any(
            f"extra == {quote}{extra}{quote}" in marker for extra in extras for quote in "\"'"
        )
        if wanted:
            found.append(name.strip())
    return found
