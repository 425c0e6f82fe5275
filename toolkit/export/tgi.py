"""Text Generation Inference: `text-generation-launcher`; what drafts is found, not named."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.export.peer import Answer, Method, Option, Peer
from toolkit.export.weights import bare_draft, hugging_face, quantized
from toolkit.recipe.schema import Recipe
from toolkit.registry import DRAFTERS
from toolkit.speculation.drafters.ngram import NGramSpeculation

TITLE = "TGI"
QUANTIZATION = {"w8a16": "eetq"}
DTYPES = ("float16", "bfloat16")

OPTIONS = {
    "--model-id": Option("str", "directory or hub id"),
    "--revision": Option("str", "branch, tag or commit of the model"),
    "--dtype": Option("float16|bfloat16", "of the weights; excludes --quantize"),
    "--quantize": Option(
        "awq|compressed-tensors|eetq|exl2|gptq|marlin|bitsandbytes|bitsandbytes-nf4|"
        "bitsandbytes-fp4|fp8",
        "how the weights are quantised",
    ),
    "--num-shard": Option("int", "GPUs that share each layer"),
    "--speculate": Option("int", "draft tokens: of Medusa heads where there are, else n-gram"),
    "--max-input-tokens": Option("int", "tokens of one prompt"),
    "--max-total-tokens": Option("int", "prompt and output of one request"),
    "--max-batch-total-tokens": Option("int", "tokens of all requests in one batch"),
    "--hostname": Option("str", "address to listen on"),
    "--port": Option("int", "port to listen on"),
}


def _none(recipe: Recipe, answer: Answer) -> None:
    """Plain decoding takes no option."""


def _ngram(recipe: Recipe, answer: Answer) -> None:
    options = recipe.speculation
    assert isinstance(options, NGramSpeculation)
    answer.said |= {"max_matching_ngram_size"}
    answer.options["--speculate"] = options.max_draft_len
    answer.notes.append(
        "speculation.max_matching_ngram_size: "
        f"{options.max_matching_ngram_size} cannot be said; {TITLE} chooses what it matches"
    )


def _medusa(recipe: Recipe, answer: Answer) -> None:
    """The heads' own repository is served; it names the target."""
    answer.said |= {"medusa_choices", "num_medusa_heads"}
    where, heads = bare_draft(recipe, answer, TITLE)
    model, revision = hugging_face(where, heads, answer, TITLE)
    answer.options["--model-id"] = model
    answer.options.pop("--revision", None)
    if revision:
        answer.options["--revision"] = revision
    answer.options["--speculate"] = DRAFTERS["medusa"].path_len(recipe.speculation)
    answer.notes.append(
        f"target.checkpoint: {TITLE} is given the heads, and loads the target that their "
        f"config.json names in base_model_name_or_path: it must be {recipe.target.checkpoint}"
    )
    answer.notes.append(
        f"speculation.medusa_choices: {TITLE} has no trees; each head gives its best token"
    )


METHODS: Mapping[str, Method] = {"none": _none, "ngram": _ngram, "medusa": _medusa}


class Tgi(Peer):
    """The launcher of Hugging Face's Text Generation Inference."""

    name = "tgi"
    title = TITLE
    documented_in = "text-generation-launcher's arguments (3.x)"
    options = OPTIONS
    methods = METHODS

    @classmethod
    def describe(cls, recipe: Recipe, answer: Answer) -> None:
        target, engine, options = recipe.target, recipe.engine, answer.options
        answer.program += ["text-generation-launcher"]
        model, revision = hugging_face("target", target, answer, TITLE)
        options["--model-id"] = model
        if revision:
            options["--revision"] = revision
        if word := quantized("target", target, QUANTIZATION, answer, TITLE):
            options["--quantize"] = word
        elif target.dtype in DTYPES:
            options["--dtype"] = target.dtype
        else:
            answer.notes.append(
                f"target.dtype: {TITLE} has no {target.dtype}, only {' and '.join(DTYPES)}"
            )
        options["--num-shard"] = target.parallel.tp
        if target.parallel.pp > 1:
            answer.problems.append(
                f"target.parallel.pp: {target.parallel.pp}; {TITLE} has no pipeline parallelism: "
                "use tp"
            )
        options["--max-input-tokens"] = engine.max_input_len
        options["--max-total-tokens"] = engine.max_seq_len
        options["--max-batch-total-tokens"] = engine.max_batch_size * engine.max_seq_len
        options["--hostname"] = recipe.serve.host
        options["--port"] = recipe.serve.http_port
        answer.notes.append(
            f"engine.max_batch_size: {TITLE} counts tokens, not requests; "
            f"{engine.max_batch_size} x max_seq_len leaves room for more short ones"
        )
