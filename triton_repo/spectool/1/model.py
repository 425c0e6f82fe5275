from toolkit.serving.models.inprocess import TritonPythonModel

__all__ = ["TritonPythonModel"]
