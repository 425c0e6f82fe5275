"""Prompt sets, one per domain: bundled ones and a user's JSONL files.

A line is {"prompt": "..."}; "id" names it in reports and "raw": true feeds the text as it stands
(completion) instead of as a user's chat message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import InputError, did_you_mean
from toolkit.json_lines import parse_fields

BUNDLED = ("chat_en", "chat_ko", "code", "edit")
ALL_DOMAINS = "all"  # how summaries call the pool of every domain
_FOLDER = Path(__file__).parent / "prompt_sets"
_FIELDS = {"id": str, "prompt": str, "raw": bool}


@dataclass(frozen=True)
class Prompt:
    """One text to answer or, when raw, to continue."""

    id: str
    text: str
    raw: bool = False


@dataclass(frozen=True)
class PromptSet:
    """The prompts of one domain, in file order."""

    domain: str
    prompts: tuple[Prompt, ...]


def load_prompt_sets(
    sources: Mapping[str, str], *, limit: int | None = None, base: Path = Path()
) -> list[PromptSet]:
    """Every domain's set, or all that is wrong with all of them at once."""
    problems: list[str] = []
    if ALL_DOMAINS in sources:
        problems.append(f"domain {ALL_DOMAINS!r}: this name stands for all domains together")
    sets = [
        _load(domain, _locate(source, base), problems)
        for domain, source in sources.items()
        if _known(domain, source, base, problems)
    ]
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise InputError(f"prompt sets: {len(problems)} problem(s)\n{lines}")
    return [PromptSet(found.domain, found.prompts[:limit]) for found in sets]


def _locate(source: str, base: Path) -> Path:
    return _FOLDER / f"{source}.jsonl" if source in BUNDLED else base / Path(source).expanduser()


def _known(domain: str, source: str, base: Path, problems: list[str]) -> bool:
    if _locate(source, base).is_file():
        return True
    problems.append(
        f"domain {domain!r}: {source!r} is neither a file nor a bundled set"
        f"{did_you_mean(source, BUNDLED)} (bundled: {', '.join(BUNDLED)})"
    )
    return False


def _load(domain: str, path: Path, problems: list[str]) -> PromptSet:
    before = len(problems)
    prompts: list[Prompt] = []
    first_line: dict[str, int] = {}  # prompt text or id -> the line that has it
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{path}: not readable as UTF-8 text: {error}")
        return PromptSet(domain, ())
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        prompt = _parse(line, f"{domain}-{number:02d}", where, problems)
        if prompt is None:
            continue
        for what, value in (("prompt", prompt.text), ("id", prompt.id)):
            earlier = first_line.setdefault(f"{what} {value}", number)
            if earlier != number:
                problems.append(f"{where}: the same {what} as in line {earlier}")
        prompts.append(prompt)
    if len(problems) == before and len(prompts) < 2:
        found = "no prompt" if not prompts else "only one prompt"
        problems.append(
            f"{path}: {found}; two are the least that an interval can be computed from, "
            "twenty give a useful one"
        )
    return PromptSet(domain, tuple(prompts))


def _parse(line: str, fallback_id: str, where: str, problems: list[str]) -> Prompt | None:
    value = parse_fields(line, _FIELDS, ("prompt",), where, problems)
    if value is None:
        return None
    return Prompt(value.get("id") or fallback_id, value["prompt"], value.get("raw", False))
