"""PromQL over the metrics of one model. Ratios are of sums over a window, never of ratios."""

from __future__ import annotations

import re
from dataclasses import dataclass

from toolkit.serving import counters as c
from toolkit.serving.monitoring.exported import ALL


@dataclass(frozen=True)
class Queries:
    """Expressions for the model that clients ask."""

    model: str

    def rate(self, metric: str, window: str = "5m", by: str = "", where: str = "") -> str:
        """Of all instances and replicas together."""
        grouped = f" by ({by})" if by else ""
        return f"sum{grouped} (rate({self.series(metric, where)}[{window}]))"

    def increase(self, metric: str, window: str, where: str = "") -> str:
        return f"sum (increase({self.series(metric, where)}[{window}]))"

    def series(self, metric: str, where: str = "") -> str:
        labels = f'model="{self.model}"' + (f", {where}" if where else "")
        return f"{metric}{{{labels}}}"

    def acceptance_rate(self, window: str = "5m") -> str:
        accepted, drafted = (self.rate(m, window) for m in (c.ACCEPTED_TOKENS, c.DRAFT_TOKENS))
        return f"{accepted} / {drafted}"

    def acceptance_length(self, window: str = "5m") -> str:
        """Tokens of a verify step that had a draft."""
        accepted, drafts = (self.rate(m, window) for m in (c.ACCEPTED_TOKENS, c.DRAFTS))
        return f"1 + {accepted} / {drafts}"

    def acceptance_by_position(self, window: str = "5m") -> str:
        accepted = self.rate(c.ACCEPTED_PER_POSITION, window, by="position")
        drafts = self.rate(c.DRAFTS, window)
        return f"{accepted} / on () group_left () {drafts}"

    def quantile(self, q: float, histogram: str, window: str = "5m", by: str = "") -> str:
        groups = f"le, {by}" if by else "le"
        return f"histogram_quantile({q:g}, {self.rate(f'{histogram}_bucket', window, by=groups)})"

    def mean(self, histogram: str, window: str, where: str = "") -> str:
        total, count = (
            self.rate(f"{histogram}_{part}", window, where=where) for part in ("sum", "count")
        )
        return f"{total} / {count}"

    def draft_share(self, window: str = "5m") -> str:
        """Of the time of verify steps, the part that went into drafting."""
        draft, verify = (self.rate(m, window) for m in (c.DRAFT_SECONDS, c.VERIFY_SECONDS))
        return f"{draft} / ({draft} + {verify})"

    def failures(self, window: str = "5m") -> str:
        """Requests that failed, of all that ended; cancelled ones are the client's own doing."""
        failed = self.rate("nv_inference_request_failure", window, where='reason!="CANCELED"')
        done = self.rate("nv_inference_request_success", window)
        return f"{failed} / ({failed} + {done})"


def metrics_in(expression: str) -> frozenset[str]:
    """The metrics of ours, of Triton or of its backend that an expression reads."""
    words = set(re.findall(r"[a-zA-Z_:][\w:]*(?=\{)", expression))
    unknown = words - ALL
    if unknown:
        raise ValueError(f"{expression}: nobody exports {sorted(unknown)}")
    return frozenset(words)
