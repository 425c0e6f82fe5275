"""The recipe's `tune.objective`: what the tuner makes best, and what it must not give up."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from toolkit.recipe.section import Section


class Objective(Section):
    """What the tuner makes best."""

    metric: Literal["tpot", "output_throughput", "throughput_under_tpot", "gpu_seconds"] = Field(
        "tpot",
        description="tpot: latency; output_throughput: tokens/s; throughput_under_tpot: tokens/s "
        "while TPOT keeps below tpot_limit_ms; gpu_seconds: of a million tokens.",
    )
    percentile: int = Field(50, ge=1, le=99, description="Of TPOT over the requests.")
    tpot_limit_ms: float | None = Field(
        None, gt=0, description="throughput_under_tpot: what the percentile must keep below."
    )
    no_domain_slower: bool = Field(
        True, description="Never take a draft length with which a domain is surely slower."
    )

    @model_validator(mode="after")
    def _limit_where_it_counts(self) -> Objective:
        limited = self.metric == "throughput_under_tpot"
        if limited and self.tpot_limit_ms is None:
            raise ValueError("throughput_under_tpot needs tpot_limit_ms")
        if not limited and self.tpot_limit_ms is not None:
            raise ValueError(
                f"tpot_limit_ms counts for throughput_under_tpot only, not for {self.metric}"
            )
        return self
