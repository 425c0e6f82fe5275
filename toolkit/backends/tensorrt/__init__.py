"""Backend `tensorrt`: engines that TensorRT-LLM builds and runs on NVIDIA GPUs."""
