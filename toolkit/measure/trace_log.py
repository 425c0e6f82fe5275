"""Traffic that was already answered: (prompt, output) pairs to trace without generating.

A line is {"prompt": "...", "output": "..."}; "domain" groups lines ("log" when absent), and "id"
and "raw" mean what they mean in prompt sets. Text is tokenised again, so an output whose tokens
were split in an unusual way may differ by a token here and there.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import InputError
from toolkit.json_lines import parse_fields
from toolkit.measure.prompts import ALL_DOMAINS, Prompt, PromptSet

_FIELDS = {"domain": str, "id": str, "output": str, "prompt": str, "raw": bool}
_DOMAIN = "log"
# What chat templates write around turns; inside a text it is another tokenizer's, or a leftover.
_MARKERS = re.compile(r"<\|[A-Za-z_0-9]+\|>|<(?:start|end)_of_turn>|\[/?INST\]")


@dataclass(frozen=True)
class Log:
    """Prompts by domain, and what each was answered."""

    path: Path
    sets: tuple[PromptSet, ...]
    outputs: Mapping[tuple[str, str], str]  # (domain, prompt id) -> text
    lines: Mapping[tuple[str, str], int]  # -> the line it came from
    repeated: int  # lines left out because an earlier one has the same prompt


def load_log(path: Path, *, limit: int | None = None) -> Log:
    """The whole file, or all that is wrong with it."""
    problems: list[str] = []
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--log {path}: not readable as UTF-8 text: {error}") from None
    domains: dict[str, list[Prompt]] = {}
    outputs: dict[tuple[str, str], str] = {}
    lines: dict[tuple[str, str], int] = {}
    seen: set[tuple[str, str]] = set()  # (domain, prompt)
    repeated = 0
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        value = parse_fields(line, _FIELDS, ("prompt", "output"), where, problems)
        if value is None:
            continue
        domain = value.get("domain") or _DOMAIN
        prompt = Prompt(
            value.get("id") or f"{domain}-{number}", value["prompt"], bool(value.get("raw"))
        )
        key = (domain, prompt.id)
        if domain == ALL_DOMAINS:
            problems.append(
                f"{where}: domain {domain!r}: this name stands for all domains together"
            )
        elif key in lines:
            problems.append(f"{where}: the same id as in line {lines[key]}")
        elif (domain, prompt.text) in seen:
            repeated += 1
        elif limit is None or len(domains.setdefault(domain, [])) < limit:
            seen.add((domain, prompt.text))
            domains.setdefault(domain, []).append(prompt)
            outputs[key], lines[key] = value["output"], number
    problems += [
        f"{path}: domain {domain!r} has one prompt; two are the least that an interval can be "
        "computed from"
        for domain, prompts in domains.items()
        if len(prompts) < 2
    ]
    if not domains and not problems:
        problems.append(f"{path}: no (prompt, output) pair")
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise InputError(f"--log: {len(problems)} problem(s)\n{listed}")
    sets = tuple(PromptSet(domain, tuple(prompts)) for domain, prompts in domains.items())
    return Log(path, sets, outputs, lines, repeated)


def foreign_text(
    text: str, encode: Callable[[str], list[int]], decode: Callable[[list[int]], str]
) -> str | None:
    """Why this tokenizer cannot have written `text`, in words; None when it can."""
    for marker in _MARKERS.findall(text):
        if len(encode(marker)) > 1:
            return f"{marker!r} is a special token of another tokenizer"
    said, again = _letters(text), _letters(decode(encode(text)))
    if said == again:
        return None
    pairs = zip(said, again, strict=False)
    place = next((i for i, (one, other) in enumerate(pairs) if one != other), len(again))
    return f"this tokenizer has no tokens for {said[place : place + 12]!r}"


def _letters(text: str) -> str:
    """Without what tokenizers may normalise away: spaces, case, ways to compose a character."""
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())
