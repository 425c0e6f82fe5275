"""TensorRT-LLM's LLM API, which loads, batches, drafts and verifies by itself."""

from toolkit.serving.models.llmapi import TritonPythonModel

__all__ = ["TritonPythonModel"]
