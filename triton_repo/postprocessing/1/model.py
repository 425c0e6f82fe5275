"""Tokens to text."""

from toolkit.serving.models.postprocessing import TritonPythonModel

__all__ = ["TritonPythonModel"]
