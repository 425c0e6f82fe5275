"""Prompts to train on, as many as wanted: topics x forms, or a JSONL file as measurements take it.

A directory holds `forms.txt` and a list for each word that the forms leave open: `{topic}` is a
line of `topics.txt`. `# chat 84` begins the forms of a kind and says its weight. `{passage}` is an
answer that the target gave earlier. `heldout_topics.txt` is the held-out split, which nothing is
trained on; where there is none, every tenth line is held out. Other lines that begin with # are
headings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

from toolkit.errors import InputError
from toolkit.measure.prompts import load_prompt_sets

Split = Literal["train", "heldout"]
FORMS = "forms.txt"
PASSAGE = "passage"
HELD_OUT_EVERY = 10
_OPEN = re.compile(r"\{(\w+)\}")
_KIND = re.compile(r"#\s*(\w+)\s+(\d+)\s*")
_SENTENCES = re.compile(r".*[.!?](?=\s|$)", re.DOTALL)
_MIN_PASSAGE = 80  # characters


@dataclass(frozen=True)
class Kind:
    """Forms that together make `weight` of all prompts."""

    name: str
    weight: int
    forms: tuple[str, ...]

    @property
    def wants_passage(self) -> bool:
        return any(f"{{{PASSAGE}}}" in form for form in self.forms)


@dataclass(frozen=True)
class PromptBook:
    """Forms, and what fills them in each split; prompt `i` is a function of (split, seed, i)."""

    kinds: tuple[Kind, ...]
    words: Mapping[tuple[Split, str], tuple[str, ...]]

    def prompt(self, split: Split, seed: int, i: int, answers: Sequence[str] = ()) -> str:
        """Number `i`. Without an answer to take a passage from, forms that want one do not come."""
        rng = Random(f"{split} {seed} {i}")
        passages = [passage for text in answers if (passage := _whole_sentences(text))]
        kinds = [kind for kind in self.kinds if passages or not kind.wants_passage]
        kind = rng.choices(kinds, [kind.weight for kind in kinds])[0]

        def fill(found: re.Match[str]) -> str:
            if found[1] == PASSAGE:
                return rng.choice(passages)
            return self._word(split, found[1], seed, i)

        return _OPEN.sub(fill, rng.choice(kind.forms))

    def _word(self, split: Split, name: str, seed: int, i: int) -> str:
        """Every word once before one comes again, in another order each time."""
        words = self.words[split, name]
        turn, at = divmod(i, len(words))
        order = Random(f"{split} {name} {seed} {turn}").sample(range(len(words)), len(words))
        return words[order[at]]


def load_prompt_book(path: Path) -> PromptBook:
    """From a directory of forms and lists, or from a JSONL file of whole prompts."""
    if path.is_dir():
        return _from_directory(path)
    [found] = load_prompt_sets({"train": str(path)})
    words = {("all", "prompt"): tuple(prompt.text for prompt in found.prompts)}
    return PromptBook((Kind("prompt", 1, ("{prompt}",)),), _split(words["all", "prompt"], "prompt"))


def _from_directory(path: Path) -> PromptBook:
    problems: list[str] = []
    kinds = _kinds(path / FORMS, problems)
    names = {name for kind in kinds for form in kind.forms for name in _OPEN.findall(form)}
    words: dict[tuple[Split, str], tuple[str, ...]] = {}
    for name in sorted(names - {PASSAGE}):
        listed = _lines(path / f"{name}s.txt", problems)
        held_out = path / f"heldout_{name}s.txt"
        if held_out.is_file():
            words["train", name] = listed
            words["heldout", name] = _lines(held_out, problems)
            if both := sorted(set(words["train", name]) & set(words["heldout", name])):
                problems.append(f"{held_out}: also in {name}s.txt: {', '.join(both[:5])}")
        else:
            words |= _split(listed, name)
        for split in ("train", "heldout"):
            if not words.get((split, name)) and (path / f"{name}s.txt").is_file():
                problems.append(f"{path}: no line for the {split} split of {name}s.txt")
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise InputError(f"prompts to train on: {len(problems)} problem(s)\n{lines}")
    return PromptBook(kinds, words)


def _split(words: tuple[str, ...], name: str) -> dict[tuple[Split, str], tuple[str, ...]]:
    every = HELD_OUT_EVERY
    return {
        ("train", name): tuple(w for i, w in enumerate(words) if i % every != every - 1),
        ("heldout", name): words[every - 1 :: every] or words[-1:],
    }


def _kinds(path: Path, problems: list[str]) -> tuple[Kind, ...]:
    kinds: list[tuple[str, int, list[str]]] = []
    for line in _text(path, problems).splitlines():
        if heading := _KIND.fullmatch(line.strip()):
            kinds.append((heading[1], int(heading[2]), []))
        elif line.strip() and not line.startswith("#"):
            if not kinds:
                kinds.append(("prompt", 1, []))
            kinds[-1][2].append(line.strip().replace("\\n", "\n"))
    found = tuple(Kind(name, weight, tuple(forms)) for name, weight, forms in kinds if forms)
    if path.is_file() and all(kind.wants_passage or kind.weight == 0 for kind in found):
        problems.append(f"{path}: no form that can begin; one kind must do without {{{PASSAGE}}}")
    return found


def _lines(path: Path, problems: list[str]) -> tuple[str, ...]:
    lines = [line.strip() for line in _text(path, problems).splitlines()]
    return tuple(dict.fromkeys(line for line in lines if line and not line.startswith("#")))


def _text(path: Path, problems: list[str]) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        problems.append(f"{path}: not readable as UTF-8 text: {reason}")
        return ""


def _whole_sentences(text: str) -> str | None:
    """The text up to its last whole sentence; None where too little is left."""
    found = _SENTENCES.match(text.strip())
    return found[0] if found and len(found[0]) >= _MIN_PASSAGE else None
