"""Triton's own OpenTelemetry traces: one span a request, with one for each model that it passes."""

from __future__ import annotations

from toolkit.recipe.schema import Recipe


def trace_flags(recipe: Recipe) -> list[str]:
    """For tritonserver; none where the recipe asks for no traces."""
    wanted = recipe.serve.traces
    if wanted is None:
        return []
    settings = (
        "mode=opentelemetry",
        f"opentelemetry,url={wanted.url}",
        f"opentelemetry,resource=service.name={recipe.name}",
        f"rate={wanted.rate}",
        "level=TIMESTAMPS",
    )
    return [f"--trace-config={setting}" for setting in settings]
