from toolkit.serving.models.tensorrt_llm import TritonPythonModel

__all__ = ["TritonPythonModel"]
