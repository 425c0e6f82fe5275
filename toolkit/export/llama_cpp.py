"""llama.cpp: `llama-server` on GGUF files; its options for speculation begin with --spec."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.export.peer import Answer, Method, Option, Peer
from toolkit.export.weights import bare_draft, gguf_file, local_name
from toolkit.recipe.schema import HeadSource, ModelSpec, Recipe
from toolkit.speculation.drafters.ngram import NGramSpeculation

TITLE = "llama.cpp"
# The recipe's precision as convert_hf_to_gguf.py writes it.
OUTTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "w8a16": "q8_0"}

OPTIONS = {
    "--model": Option("str", "GGUF file"),
    "--ctx-size": Option("int", "tokens of all slots together"),
    "--parallel": Option("int", "slots: requests decoded together"),
    "--split-mode": Option("none|layer|row|tensor", "how GPUs share the model"),
    "--tensor-split": Option("str", "share of each GPU"),
    "--host": Option("str", "address to listen on"),
    "--port": Option("int", "port to listen on"),
    "--spec-type": Option(
        "none|draft-simple|draft-eagle3|draft-mtp|draft-dflash|draft-dspark|ngram-simple|"
        "ngram-map-k|ngram-map-k4v|ngram-mod|ngram-cache",
        "who drafts",
    ),
    "--spec-draft-model": Option("str", "GGUF file of the draft model or head"),
    "--spec-draft-n-max": Option("int", "draft tokens of one step, at most"),
    "--spec-draft-n-min": Option("int", "drafts shorter than this are dropped"),
    "--spec-draft-sampling": Option("greedy|probabilistic", "how the draft chooses"),
    "--spec-ngram-simple-size-n": Option("int", "length of the n-gram that is looked for"),
    "--spec-ngram-simple-size-m": Option("int", "draft tokens taken from behind it"),
}


def _none(recipe: Recipe, answer: Answer) -> None:
    """Plain decoding takes no option."""


def _ngram(recipe: Recipe, answer: Answer) -> None:
    options = recipe.speculation
    assert isinstance(options, NGramSpeculation)
    answer.said |= {"max_matching_ngram_size", "min_matching_ngram_size"}
    answer.options["--spec-type"] = "ngram-simple"
    answer.options["--spec-ngram-simple-size-n"] = options.max_matching_ngram_size
    answer.options["--spec-ngram-simple-size-m"] = options.max_draft_len
    if options.min_matching_ngram_size != options.max_matching_ngram_size:
        answer.notes.append(
            f"speculation.min_matching_ngram_size: {TITLE} looks for exactly "
            f"{options.max_matching_ngram_size} tokens, never for fewer"
        )


def _draft(kind: str) -> Method:
    def say(recipe: Recipe, answer: Answer) -> None:
        where, draft = bare_draft(recipe, answer, TITLE)
        answer.options["--spec-type"] = kind
        answer.options["--spec-draft-model"] = _file(where, draft, recipe, answer)
        answer.options["--spec-draft-n-max"] = recipe.speculation.max_draft_len

    return say


def _mtp(recipe: Recipe, answer: Answer) -> None:
    answer.options["--spec-type"] = "draft-mtp"
    answer.options["--spec-draft-n-max"] = recipe.speculation.max_draft_len


def _file(where: str, model: ModelSpec | HeadSource, recipe: Recipe, answer: Answer) -> str:
    """The GGUF file, with the commands that make it where the recipe names safetensors."""
    if found := gguf_file(where, model, answer):
        return found
    name = local_name(where, model)
    convert = ["python3", "convert_hf_to_gguf.py", _directory(where, model, answer)]
    convert += ["--outfile", f"{name}.gguf", "--outtype", _outtype(where, model, recipe, answer)]
    if isinstance(model, HeadSource):
        convert += ["--target-model-dir", _directory("target", recipe.target, answer)]
    answer.steps.append(convert)
    return f"{name}.gguf"


def _directory(where: str, model: ModelSpec | HeadSource, answer: Answer) -> str:
    """Where the safetensors lie, once a hub id has been fetched."""
    if model.checkpoint.startswith("/"):
        return model.checkpoint
    directory = f"{local_name(where, model)}-safetensors"
    pin = ["--revision", model.revision] if model.revision else []
    answer.steps.append(["hf", "download", model.checkpoint, "--local-dir", directory, *pin])
    return directory


def _outtype(where: str, model: ModelSpec | HeadSource, recipe: Recipe, answer: Answer) -> str:
    if isinstance(model, HeadSource):
        return OUTTYPES[recipe.target.dtype]
    if model.quantization and model.quantization not in OUTTYPES:
        answer.notes.append(
            f"{where}.quantization: {TITLE} has no {model.quantization!r}; llama-quantize makes "
            "4-bit files of the converted one"
        )
    return OUTTYPES.get(model.quantization or "", OUTTYPES[model.dtype])


METHODS: Mapping[str, Method] = {
    "none": _none,
    "ngram": _ngram,
    "draft_target": _draft("draft-simple"),
    "eagle3": _draft("draft-eagle3"),
    "mtp": _mtp,
    "dflash": _draft("draft-dflash"),
    "dspark": _draft("draft-dspark"),
}


class LlamaCpp(Peer):
    """The HTTP server of llama.cpp."""

    name = "llama.cpp"
    title = TITLE
    documented_in = "llama-server's README (2026; before, --spec-draft-n-max was --draft-max)"
    options = OPTIONS
    methods = METHODS

    @classmethod
    def describe(cls, recipe: Recipe, answer: Answer) -> None:
        target, engine, options = recipe.target, recipe.engine, answer.options
        answer.program += ["llama-server"]
        options["--model"] = _file("target", target, recipe, answer)
        options["--ctx-size"] = engine.max_batch_size * engine.max_seq_len
        options["--parallel"] = engine.max_batch_size
        ranks = target.parallel.tp * target.parallel.pp
        if ranks > 1:
            options["--split-mode"] = "row" if target.parallel.tp > 1 else "layer"
            options["--tensor-split"] = ",".join(["1"] * ranks)
            answer.notes.append(
                f"target.parallel: {TITLE} splits by rows or by layers over all visible GPUs, not "
                "by both"
            )
        options["--host"] = recipe.serve.host
        options["--port"] = recipe.serve.http_port
        answer.notes.append(
            f"engine.max_input_len: {TITLE} limits prompt and output of a slot together "
            f"({engine.max_seq_len} tokens)"
        )
        if gguf_file("target", target, Answer()):
            answer.notes.append(
                "target.dtype: precision and quantisation are what the GGUF file holds"
            )
