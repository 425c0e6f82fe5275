"""Repositories for TensorRT-LLM's LLM API: one model, which what was made for NVIDIA's can ask."""
