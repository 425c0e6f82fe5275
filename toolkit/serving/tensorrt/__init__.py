"""Repositories for TensorRT-LLM engines: its C++ backend runs them, our models stand around it."""
