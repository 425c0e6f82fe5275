"""The speculative loop with its models in one process."""

from toolkit.serving.models.inprocess import TritonPythonModel

__all__ = ["TritonPythonModel"]
