"""From the engine's graph to a compiled paged-attention model, and its one infer request.

The only file that knows OpenVINO's paged form. Its transformation lives in an underscored module,
so pyproject.toml pins the release and tests/backends/cpu hold its behaviour.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from toolkit.engine.directory import SEAL, CpuEngine
from toolkit.errors import InputError
from toolkit.optional import require

# Checkpoint dtype -> (hint for computing and caching, numpy dtype of a KV array's raw values).
PRECISIONS: dict[str, tuple[str, DTypeLike]] = {
    "float32": ("f32", np.float32),
    "float16": ("f32", np.float32),
    "bfloat16": ("bf16", np.uint16),
}


class PagedModel:
    """A compiled decoder whose inputs are flat over the batch."""

    def __init__(self, engine: CpuEngine, threads: int | None) -> None:
        self._openvino = require("openvino", extra="cpu", why="backend cpu")
        core = self._openvino.Core()
        self.precision, self.kv_dtype = _precision(core, engine)
        model = _read(core, engine)
        _page(model)
        options = {**_options(self.precision, threads), "KV_CACHE_PRECISION": self.precision}
        self._request = core.compile_model(model, "CPU", options).create_infer_request()
        self._bound: dict[str, NDArray[Any]] = {}  # the memory that each input reads now

    def bind(self, kv: NDArray[Any]) -> None:
        """Use this memory for keys and values: [layer, 2, block, kv head, token, D]."""
        kind = {"f32": self._openvino.Type.f32, "bf16": self._openvino.Type.bf16}[self.precision]
        for i, layer in enumerate(kv):
            for name, cache in zip(("key_cache", "value_cache"), layer, strict=True):
                tensor = self._openvino.Tensor(cache, list(cache.shape), kind)
                self._request.set_tensor(f"{name}.{i}", tensor)

    def infer(
        self, inputs: dict[str, NDArray[Any]]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """logits [R, V] and captured states [T, C * H]: views that the next call overwrites."""
        request = self._request
        for name, values in inputs.items():
            bound = self._bound.get(name)
            if bound is not None and bound.shape == values.shape:
                bound[...] = values  # 10 times faster than handing over another tensor
            else:
                self._bound[name] = values
                request.set_tensor(name, self._openvino.Tensor(values, shared_memory=True))
        request.infer()
        return request.get_output_tensor(0).data, request.get_output_tensor(1).data


def compiled(engine: CpuEngine, threads: int | None) -> Any:
    """An infer request of a graph without attention."""
    core = require("openvino", extra="cpu", why="backend cpu").Core()
    precision, _ = _precision(core, engine)
    model = core.compile_model(_read(core, engine), "CPU", _options(precision, threads))
    return model.create_infer_request()


def _precision(core: Any, engine: CpuEngine) -> tuple[str, DTypeLike]:
    precision = PRECISIONS[engine.settings.dtype]
    if precision[0] == "bf16" and not _has_bf16(core):
        return PRECISIONS["float32"]
    return precision


def _options(precision: str, threads: int | None) -> dict[str, Any]:
    return {
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
        # Weight-only int8 means that activations are not rounded to 8 bits (the default does).
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
        **({"INFERENCE_NUM_THREADS": threads} if threads else {}),
    }


def _has_bf16(core: Any) -> bool:
    return "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _page(model: Any) -> None:
    """Turn every attention into a paged one."""
    from openvino._offline_transformations import paged_attention_transformation

    paged_attention_transformation(model, allow_qq_bias=True)


def _read(core: Any, engine: CpuEngine) -> Any:
    """The graph, refused when it is not the one of its config.json."""
    try:
        model = core.read_model(engine.graph)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise InputError(
            f"{engine.graph}: not a graph that OpenVINO can read ({reason}); build the engine again"
        ) from None
    if (
        not model.has_rt_info(list(SEAL))
        or model.get_rt_info(list(SEAL)).astype(str) != engine.seal
    ):
        raise InputError(
            f"{engine.directory}: config.json is not the one that the graph was built with; "
            "build the engine again"
        )
    return model
