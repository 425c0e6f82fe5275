"""Fit a deployment's configuration to the TensorRT-LLM that is installed here, or say why not.

This file is copied into deployments and runs in the container: standard library and tensorrt_llm
only. It reads probe.json beside it, looks at the fields of the installed classes and writes YAML:

    python3 probe.py --out /tmp/llm_args.yaml

Exit codes: 0 written, 2 this release cannot do what the recipe asks for, 3 no TensorRT-LLM here.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
COUNT, SCHEDULE = "max_draft_len", "draft_len_schedule"
LAYERS = "num_nextn_predict_layers"
DRAFT_KEYS = ("speculative_model", "speculative_model_dir")


class Refused(Exception):  # noqa: N818 - a sentence for the user, not a programming error
    """This TensorRT-LLM cannot do what the recipe asks for."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Fit llm_args.yaml to the installed release.")
    parser.add_argument("--out", type=Path, required=True, help="YAML file to write")
    out = parser.parse_args().out
    wanted = json.loads((HERE / "probe.json").read_text(encoding="utf-8"))
    try:
        version = str(importlib.import_module("tensorrt_llm").__version__)
        classes = importlib.import_module("tensorrt_llm.llmapi.llm_args")
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        say(f"no usable TensorRT-LLM here ({error}); run this inside its container")
        return 3
    if version != wanted["release"]:
        say(
            f"written for TensorRT-LLM {wanted['release']}, found {version}: looking at its classes"
        )
    try:
        args = fit(classes, wanted, HERE)
    except Refused as error:
        say(f"TensorRT-LLM {version}: {error}")
        return 2
    out.write_text(to_yaml(args) + "\n", encoding="utf-8")
    return 0


def say(text: str) -> None:
    sys.stderr.write(f"probe: {text}\n")


def fit(classes: Any, wanted: Mapping[str, Any], home: Path) -> dict[str, Any]:
    """The LLM API's arguments in the words of the installed classes."""
    args = _top_level(classes, wanted)
    if speculation := wanted["speculation"]:
        args["speculative_config"] = _speculation(classes, speculation, home)
    return args


def _top_level(classes: Any, wanted: Mapping[str, Any]) -> dict[str, Any]:
    llm = getattr(classes, "TorchLlmArgs", None) or getattr(classes, "LlmArgs", None)
    known = set(getattr(llm, "model_fields", {}))
    args = dict(wanted["llm_args"])
    if not known:
        return args
    for name in sorted(set(args) - known):
        if name not in wanted["optional"]:
            raise Refused(f"the LLM API has no {name!r}; change the recipe and build again")
        say(f"left out {name}: this release has no such key")
        del args[name]
    return args


def _speculation(classes: Any, wanted: Mapping[str, Any], home: Path) -> dict[str, Any]:
    cls = next((c for c in map(_named(classes), wanted["classes"]) if c is not None), None)
    if cls is None:
        raise Refused(
            f"no {wanted['drafter']} on this release ({' or '.join(wanted['classes'])} in "
            "llm_args); choose another drafter or release"
        )
    fields = dict(_fields(cls, wanted))
    if wanted["draft"] is not None:
        fields[_known(cls, DRAFT_KEYS, "draft")] = _place(wanted["draft"], home)
    fields |= _length(cls, wanted)
    if wanted["schedule"]:
        fields[SCHEDULE] = _schedule(cls, wanted, fields)
    kind = _discriminator(classes, cls, wanted["decoding_types"], fields)
    _construct(cls, fields)
    return {"decoding_type": kind, **fields}


def _named(classes: Any) -> Callable[[str], Any]:
    return lambda name: getattr(classes, name, None)


def _keys(cls: Any) -> set[str]:
    """The keys that a class takes: its fields, and other names that they are given by."""
    found = set(cls.model_fields)
    for field in cls.model_fields.values():
        choices = getattr(getattr(field, "validation_alias", None), "choices", ())
        found |= {choice for choice in choices if isinstance(choice, str)}
    return found


def _known(cls: Any, names: tuple[str, ...] | list[str], what: str) -> str:
    """The first of the names that the class takes; fields before aliases."""
    for keys in (set(cls.model_fields), _keys(cls)):
        for name in names:
            if name in keys:
                return name
    raise Refused(
        f"{cls.__name__} takes no {what} ({' or '.join(names)}); it takes "
        f"{', '.join(sorted(cls.model_fields))}"
    )


def _fields(cls: Any, wanted: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in wanted["fields"].items():
        names = [name, *wanted["other_names"].get(name, [])]
        if name in wanted["optional"] and not _keys(cls) & set(names):
            say(f"left out {name}: {cls.__name__} has no such key")
        else:
            yield _known(cls, names, name), value


def _place(draft: str, home: Path) -> str:
    """A path in the deployment as an absolute one; anything else as it is."""
    return str(home / draft) if draft.startswith("./") else draft


def _length(cls: Any, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Where LAYERS has a default it overwrites max_draft_len, so it is what counts."""
    layers = cls.model_fields.get(LAYERS)
    if layers is not None and layers.default is not None:
        return {LAYERS: wanted[COUNT]}
    return {_known(cls, (COUNT, LAYERS), "draft length"): wanted[COUNT]}


def _schedule(cls: Any, wanted: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[int, int]:
    """The steps (from this batch on, this length) as the installed class reads its keys."""
    _known(cls, (SCHEDULE,), "draft length by batch size")
    steps = [(int(batch), int(length)) for batch, length in wanted["schedule"]]
    # One key above 1: releases that read "from this batch on" want a key for batch 1 as well.
    if not _takes(cls, {**fields, SCHEDULE: {2: wanted[COUNT]}}):
        return dict(steps)
    upper = {after - 1: length for (_, length), (after, _) in itertools.pairwise(steps)}
    last, length = steps[-1]
    if length:
        upper[max(last, int(wanted["max_batch_size"]))] = length
    return upper


def _discriminator(classes: Any, cls: Any, kinds: list[str], fields: Mapping[str, Any]) -> str:
    """decoding_type as this release spells it: a field's default, or what its table takes."""
    if "decoding_type" in cls.model_fields:
        return str(cls.model_fields["decoding_type"].default)
    base = getattr(classes, "DecodingBaseConfig", None)
    dispatch = getattr(base, "from_dict", None)
    if dispatch is None:
        return str(getattr(cls, "decoding_type", kinds[0]))
    for kind in kinds:
        try:
            made = dispatch({"decoding_type": kind, **fields})
        except (ValueError, TypeError) as error:
            if "decoding type" not in str(error).lower():
                raise Refused(_first(error)) from None
            continue
        if isinstance(made, cls):
            return kind
    raise Refused(f"takes none of the decoding types {', '.join(kinds)}")


def _takes(cls: Any, fields: Mapping[str, Any]) -> bool:
    try:
        cls(**fields)
    except (ValueError, TypeError):
        return False
    return True


def _construct(cls: Any, fields: Mapping[str, Any]) -> None:
    """The class's own checks have the last word."""
    try:
        cls(**fields)
    except (ValueError, TypeError) as error:
        raise Refused(f"{cls.__name__}: {_first(error)}") from None


def _first(error: Exception) -> str:
    return " ".join(line.strip() for line in str(error).splitlines()[:4])


def to_yaml(value: Any, indent: str = "") -> str:
    """Nested mappings as blocks, everything else in JSON's notation, which YAML includes."""
    lines = []
    for key, item in value.items():
        name = key if isinstance(key, int) else json.dumps(key)
        if isinstance(item, dict) and item:
            lines.append(f"{indent}{name}:\n{to_yaml(item, indent + '  ')}")
        else:
            lines.append(f"{indent}{name}: {json.dumps(item)}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
