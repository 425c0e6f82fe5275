"""The same load as a command line for NVIDIA's AIPerf, for those who prefer it.

AIPerf (run with 0.13.0) knows Triton's generate_stream as a template endpoint. It writes its own
prompts, and counts tokens with a tokenizer that it wants as a directory.
"""

from __future__ import annotations

import json
import shlex

from toolkit.serving.load.arrivals import Arrivals, Closed


def aiperf_command(
    http: str,  # http://host:port
    model: str,
    arrivals: Arrivals,
    *,
    tokenizer: str,
    requests: int,
    max_tokens: int,
) -> str:
    """A line for a shell."""
    template = (
        '{"text_input": {{ text|tojson }}, "stream": true, "end_id": -1, '
        f'"max_tokens": {max_tokens}}}'
    )
    extra = {"payload_template": template, "response_field": "text_output"}
    load = (
        ["--concurrency", str(arrivals.clients)]
        if isinstance(arrivals, Closed)
        else ["--request-rate", f"{arrivals.rate:g}", "--arrival-pattern", "poisson"]
    )
    words = [
        "aiperf", "profile", "--model", model, "--url", http, "--streaming",
        "--endpoint-type", "template", "--custom-endpoint", f"/v2/models/{model}/generate_stream",
        "--extra-inputs", json.dumps(extra), "--tokenizer", tokenizer,
        "--request-count", str(requests), *load, "--output-tokens-mean", str(max_tokens),
    ]  # fmt: skip
    return shlex.join(words)
