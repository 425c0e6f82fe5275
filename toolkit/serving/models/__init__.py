"""The served models as Triton's Python backend runs them: one file, one class each."""
