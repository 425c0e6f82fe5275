"""The speculative loop over target and draft."""

from toolkit.serving.models.tensorrt_llm_bls import TritonPythonModel

__all__ = ["TritonPythonModel"]
