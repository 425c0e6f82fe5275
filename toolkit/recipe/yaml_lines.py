"""YAML as plain data plus the line of every key; nothing executable, nothing that can explode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import yaml

from toolkit.errors import InputError

MAX_BYTES = 1 << 20
MAX_NODES = 20_000
MAX_DEPTH = 32

_TAG = "tag:yaml.org,2002:"
_SCALARS = {_TAG + name for name in ("str", "int", "float", "bool", "null")}
_TEXT = {_TAG + name for name in ("timestamp", "value")}  # a date is text to us, and so is "="

_START = "; `spectool init` writes a recipe to start from"

KeyPath = tuple[str | int, ...]
T = TypeVar("T")


@dataclass(frozen=True, order=True)
class Where:
    """Where a value was written: what a message says about it, and how messages sort."""

    source: int  # 0: the recipe itself, 1..: what it extends, SET: the command line
    line: int
    file: str = field(compare=False)

    SET: ClassVar[int] = 1 << 30

    def __str__(self) -> str:
        if self.source == Where.SET:
            return "--set"
        return f"{self.file} line {self.line}" if self.source else f"line {self.line}"


@dataclass(frozen=True)
class Problem:
    """One thing that the user must change."""

    path: KeyPath
    text: str
    where: Where | None = None

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.text}" + (f" ({self.where})" if self.where else "")


@dataclass
class Document:
    """A mapping of plain data, where each key of it was written, and what was wrong with it."""

    data: dict[str, Any]
    where: dict[KeyPath, Where] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


class _Loader(yaml.SafeLoader):
    """SafeLoader without aliases, and with limits on nodes and depth that stop it early."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.nodes = 0
        self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise self._refuse("aliases (*name) are not accepted; write the value out")
        self.nodes += 1
        self.depth += 1
        if self.nodes > MAX_NODES:
            raise self._refuse(f"more than {MAX_NODES} values")
        if self.depth > MAX_DEPTH:
            raise self._refuse(f"nested deeper than {MAX_DEPTH} levels")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def _refuse(self, why: str) -> yaml.MarkedYAMLError:
        # YAML's reader is at the line in question: it runs at most one token ahead.
        return yaml.MarkedYAMLError(problem=why, problem_mark=self.get_mark())


def read_text(path: Path) -> str:
    """The file as text, or why it cannot be a recipe."""
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a directory; a recipe is one YAML file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: not readable: {error.strerror or error}") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{path}: larger than 1 MiB; a recipe is a page of YAML")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from None


def parse_value(text: str) -> Any:
    """One YAML value, as after `--set key=`; raises ValueError with the reason."""
    reader = _Reader(text, source=Where.SET, file="--set")
    value = reader.read(lambda node: None if node is None else reader.build(node, ()))
    if reader.problems:
        raise ValueError("; ".join(problem.text for problem in reader.problems))
    return value


def parse_document(text: str, name: str, source: int = 0, *, what: str = "a recipe") -> Document:
    """The mapping in `text`; duplicate and odd keys are among its problems."""
    reader = _Reader(text, source=source, file=Path(name).name)

    def top(node: yaml.Node | None) -> dict[str, Any]:
        if node is None:
            raise ValueError("empty" + _START if what == "a recipe" else "empty")
        if not isinstance(node, yaml.MappingNode):
            kind = "list" if isinstance(node, yaml.SequenceNode) else "single value"
            raise ValueError(f"{what} is a mapping (key: value), this file holds a {kind}")
        found = reader.build(node, ())
        return found if isinstance(found, dict) else {}

    try:
        return Document(reader.read(top), reader.where, reader.problems)
    except ValueError as error:
        raise InputError(f"{name}: {error}") from None


class _Reader:
    """Turns the node graph of one text into plain data, collecting places and problems."""

    def __init__(self, text: str, *, source: int, file: str) -> None:
        self.text = text
        self.source = source
        self.file = file
        self.where: dict[KeyPath, Where] = {}
        self.problems: list[Problem] = []

    def read(self, use: Callable[[yaml.Node | None], T]) -> T:
        """`use` on the root node; whatever YAML has to complain about becomes a ValueError."""
        try:
            self.loader = _Loader(self.text)
            try:
                return use(self.loader.get_single_node())
            finally:
                self.loader.dispose()
        except yaml.YAMLError as error:
            raise ValueError(f"not usable YAML: {_reason(error, self.source)}") from None

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        here = self._at(node)
        self.where.setdefault(path, here)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._build_mapping(node, path)
        if isinstance(node, yaml.ScalarNode) and node.tag in _TEXT:
            return node.value
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
            try:
                return self.loader.construct_object(node)
            except (ValueError, KeyError):
                kind = node.tag.removeprefix(_TAG)
                text = f"{node.value[:40]!r} is not a usable {kind}"
                self.problems.append(Problem(path, text, here))
                return None
        tag = node.tag.replace(_TAG, "!!")
        self.problems.append(Problem(path, f"YAML tag {tag!r} is not accepted", here))
        return None

    def _build_mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            here = self._at(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                text = "a key must be one word, not a list or mapping"
                self.problems.append(Problem(path, text, here))
                continue
            key: str = key_node.value  # `on:` or `1:` stay the text that the user typed
            full = (*path, key)
            if key in found:
                text = f"written twice, first on line {self.where[full].line}; keep one"
                self.problems.append(Problem(full, text, here))
                continue
            self.where[full] = here
            found[key] = self.build(value_node, full)
        return found

    def _at(self, node: yaml.Node) -> Where:
        return Where(self.source, node.start_mark.line + 1, self.file)


def _reason(error: yaml.YAMLError, source: int) -> str:
    if not isinstance(error, yaml.MarkedYAMLError):
        return " ".join(str(error).split())
    what = (error.problem or error.context or "syntax error").strip()
    if what.startswith("but "):
        what = f"{error.context} {what}"
    if error.problem_mark is None or source == Where.SET:
        return what
    return f"{what} (line {error.problem_mark.line + 1})"


def dotted(path: KeyPath) -> str:
    """`("tune", "k", 1)` as `tune.k[1]`; the document itself as `recipe`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "recipe"
