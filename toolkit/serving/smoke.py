"""One small request that proves a deployment: text came, and the counts make sense."""

from __future__ import annotations

from toolkit.errors import RunError
from toolkit.serving import client
from toolkit.serving.client import Answer, Ask
from toolkit.serving.llmapi import client as llmapi_client
from toolkit.serving.server import Address

PROMPT = "Once upon a time"


def smoke(address: Address, model: str, layout: str | None = None) -> Answer:
    """The answer to a fixed prompt; RunError when it is not one."""
    generate = llmapi_client.generate if layout == "llmapi" else client.generate
    ask = Ask(text_input=PROMPT, max_tokens=16, end_id=-1, return_perf_metrics=True)
    answer = generate(address.http, model, ask, timeout_s=120.0)
    drafted, accepted = answer.total_draft_tokens, answer.total_accepted_draft_tokens
    if not answer.text:
        raise RunError(f"{model} answered {PROMPT!r} with nothing")
    if layout == "llmapi" and drafted is accepted is None:
        return answer  # it says nothing about a request that drafted nothing
    if drafted is None or accepted is None or not 0 <= accepted <= drafted:
        raise RunError(f"{model} counted {accepted} accepted of {drafted} draft tokens")
    return answer
