"""Which container image serves which release, each by its own tag and never by `latest`."""

from __future__ import annotations

from toolkit.errors import InputError
from toolkit.recipe.release import release
from toolkit.recipe.schema import Recipe

NGC = "nvcr.io/nvidia/tritonserver:{tag}-trtllm-python-py3"
# TensorRT-LLM -> the newest Triton release whose image has it, as NVIDIA's compatibility matrix
# (docs/introduction/compatibility.md of triton-inference-server/server, release 26.08) lists them.
TAGS = {
    "0.16.0": "24.12",
    "0.17.0": "25.01",
    "0.17.0.post1": "25.02",
    "0.18.0": "25.03",
    "0.18.2": "25.04",
    "0.19.0": "25.05",
    "0.20.0": "25.07",
    "0.21.0": "25.08",
    "1.0.0": "25.10",
    "1.0.3": "25.11",
    "1.1.0": "26.02",
    "1.2.0": "26.03",
    "1.2.1": "26.07",
}
PYTHON = "python:3.12.12-slim-bookworm"  # for backend cpu: the server comes from the wheel
PROMETHEUS = "prom/prometheus:v3.5.0"
GRAFANA = "grafana/grafana:12.1.1"


def image_of(recipe: Recipe) -> str:
    """The recipe's own choice, or the image for its backend and release."""
    if recipe.serve.image:
        return recipe.serve.image
    return PYTHON if recipe.backend == "cpu" else NGC.format(tag=tag_of(recipe.tensorrt_llm))


def tag_of(version: str) -> str:
    """The Triton release for a TensorRT-LLM; of the same release, the nearest patch below it."""
    wanted = release(version)
    found = [tag for known, tag in TAGS.items() if release(known) == wanted]
    if not found:
        raise InputError(
            f"no image of NVIDIA's holds Triton and TensorRT-LLM {version} (those of "
            f"{', '.join(TAGS)} do): name one that does in serve.image"
        )
    return TAGS.get(version, found[-1])
