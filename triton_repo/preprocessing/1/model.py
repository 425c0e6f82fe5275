"""Text to tokens."""

from toolkit.serving.models.preprocessing import TritonPythonModel

__all__ = ["TritonPythonModel"]
