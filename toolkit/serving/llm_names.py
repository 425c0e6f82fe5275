"""What the models that run engines are called, in TensorRT-LLM's words."""

from __future__ import annotations


def llm_name(role: str) -> str:
    return "tensorrt_llm" if role == "target" else f"tensorrt_llm_{role}"
