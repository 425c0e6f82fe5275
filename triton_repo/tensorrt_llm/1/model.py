"""Target or draft, in TensorRT-LLM's tensors; the engine is spectool's."""

from toolkit.serving.models.tensorrt_llm import TritonPythonModel

__all__ = ["TritonPythonModel"]
