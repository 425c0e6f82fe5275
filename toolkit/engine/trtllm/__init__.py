"""From a TensorRT-LLM checkpoint to an engine: trtllm-build, its rules and its failures."""
