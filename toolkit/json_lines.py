"""Files that hold one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.errors import did_you_mean


def parse_fields(
    line: str,
    fields: Mapping[str, type],
    required: Sequence[str],
    where: str,
    problems: list[str],
) -> dict[str, Any] | None:
    """One line of JSON as the object it must be; None, and all its problems, when it is not."""
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        problems.append(f"{where}: not JSON: {error}")
        return None
    if not isinstance(value, dict):
        example = ", ".join(f'"{name}": "..."' for name in required or list(fields)[:1])
        problems.append(f"{where}: expected an object like {{{example}}}")
        return None
    wrong = [
        f"{where}: unknown key {key!r}{did_you_mean(key, fields)} (known: {', '.join(fields)})"
        for key in value
        if key not in fields
    ]
    wrong += [
        f"{where}: {key}: expected {kind.__name__}, got {type(value[key]).__name__}"
        for key, kind in fields.items()
        if key in value and not isinstance(value[key], kind)
    ]
    for name in required:
        if name not in value:
            wrong.append(f"{where}: {name}: required")
        elif isinstance(value[name], str) and not value[name].strip():
            wrong.append(f"{where}: {name}: empty")
    problems.extend(wrong)
    return None if wrong else value
