from toolkit.serving.models.tensorrt_llm_bls import TritonPythonModel

__all__ = ["TritonPythonModel"]
