"""TensorRT-LLM's PyTorch backend: its configuration by release, and what deploys it."""
