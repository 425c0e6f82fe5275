"""Chat templates: Jinja that came with a model, so it runs in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from toolkit.errors import InputError


def render_chat(
    template: str, messages: Sequence[Mapping[str, str]], special: Mapping[str, str]
) -> str:
    """The conversation as text, up to where the assistant's answer begins."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(template).render(
            messages=[dict(message) for message in messages], add_generation_prompt=True, **special
        )
    except Exception as error:  # noqa: BLE001 - a template is the model's own code: its failure
        raise InputError(f"the model's chat template refused this conversation: {error}") from None
