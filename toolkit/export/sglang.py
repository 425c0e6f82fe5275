"""SGLang: `python3 -m sglang.launch_server` with one flag for each setting."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.export.peer import Answer, Method, Option, Peer
from toolkit.export.weights import bare_draft, draft_of, hugging_face, quantized
from toolkit.recipe.schema import ModelSpec, Recipe
from toolkit.registry import DRAFTERS
from toolkit.speculation.drafters.ngram import NGramSpeculation

TITLE = "SGLang"
QUANTIZATION = {"fp8": "modelopt_fp8"}  # the checkpoint is ModelOpt's

OPTIONS = {
    "--model-path": Option("str", "directory or hub id"),
    "--revision": Option("str", "branch, tag or commit of the model"),
    "--dtype": Option("auto|half|float16|bfloat16|float|float32", "of weights and activations"),
    "--quantization": Option("str", "how the weights are quantised"),
    "--tp-size": Option("int", "GPUs that share each layer"),
    "--pp-size": Option("int", "GPUs that share the layers"),
    "--context-length": Option("int", "prompt and output of one request"),
    "--max-running-requests": Option("int", "requests in one batch"),
    "--host": Option("str", "address to listen on"),
    "--port": Option("int", "port to listen on"),
    "--speculative-algorithm": Option(
        "EAGLE|EAGLE3|NEXTN|STANDALONE|NGRAM|DFLASH|DSPARK", "who drafts"
    ),
    "--speculative-draft-model-path": Option("str", "draft model or head"),
    "--speculative-draft-model-revision": Option("str", "of the draft model"),
    "--speculative-draft-model-quantization": Option("str", "unquant: none, even if the target is"),
    "--speculative-num-steps": Option("int", "depth of the draft"),
    "--speculative-eagle-topk": Option("int", "children of each node; 1: a chain"),
    "--speculative-num-draft-tokens": Option("int", "tokens verified at once, the root included"),
    "--speculative-ngram-min-bfs-breadth": Option("int", "branches kept of a match, at least"),
    "--speculative-ngram-max-bfs-breadth": Option("int", "branches kept of a match, at most"),
}


def _none(recipe: Recipe, answer: Answer) -> None:
    """Plain decoding takes no option."""


def _ngram(recipe: Recipe, answer: Answer) -> None:
    options = recipe.speculation
    assert isinstance(options, NGramSpeculation)
    answer.said |= {"max_matching_ngram_size"}
    answer.options["--speculative-algorithm"] = "NGRAM"
    answer.options["--speculative-num-draft-tokens"] = options.max_draft_len + 1
    answer.options["--speculative-ngram-min-bfs-breadth"] = 1
    answer.options["--speculative-ngram-max-bfs-breadth"] = 1
    answer.notes.append(
        f"speculation.max_matching_ngram_size: {options.max_matching_ngram_size} cannot be said to "
        f"every {TITLE} (older releases have --speculative-ngram-max-match-window-size)"
    )
    answer.notes.append(
        "speculation.drafter: NGRAM drafts from one cache that all requests share, not from the "
        "prompt and output of each"
    )


def _draft_model(algorithm: str) -> Method:
    """A chain as long as the recipe says, or its dynamic tree."""

    def say(recipe: Recipe, answer: Answer) -> None:
        options = recipe.speculation
        _draft(recipe, answer, algorithm)
        width = getattr(options, "dynamic_tree_max_top_k", None) or 1
        nodes = getattr(options, "total_draft_tokens", None) or options.max_draft_len * width
        answer.said |= {"use_dynamic_tree", "dynamic_tree_max_top_k", "max_total_draft_tokens"}
        _tree(answer, options.max_draft_len, width, nodes)

    return say


def _eagle(recipe: Recipe, answer: Answer) -> None:
    """EAGLE-2's dynamic tree: of the recipe's tree its depth, its width and its nodes remain."""
    options = recipe.speculation
    drafter = DRAFTERS[options.drafter]
    _draft(recipe, answer, "EAGLE")
    answer.said |= {
        "eagle_choices", "num_eagle_layers", "eagle_use_dynamic_tree",
        "eagle_dynamic_tree_max_top_k",
    }  # fmt: skip
    tree = drafter.tree(options)
    nodes = len(tree.choices) if tree else options.max_draft_len
    width = (
        sum(len(path) == 1 for path in tree.choices)
        if tree
        else getattr(options, "eagle_dynamic_tree_max_top_k", None) or 10
    )
    _tree(answer, drafter.path_len(options), width, nodes)
    if tree:
        answer.notes.append(
            f"speculation.eagle_choices: {TITLE} grows its own tree; depth, width at the root and "
            "number of nodes are kept, the shape is not"
        )


def _mtp(recipe: Recipe, answer: Answer) -> None:
    """The target's own layers draft, unless they lie in a checkpoint of their own."""
    if draft_of(recipe.speculation):
        _draft_model("NEXTN")(recipe, answer)
        return
    depth = recipe.speculation.max_draft_len
    answer.options["--speculative-algorithm"] = "NEXTN"
    _tree(answer, depth, 1, depth)


def _block(algorithm: str) -> Method:
    """Drafts of one fixed size, which the draft's own config.json says."""

    def say(recipe: Recipe, answer: Answer) -> None:
        _draft(recipe, answer, algorithm)
        answer.notes.append(
            f"speculation.max_draft_len: {TITLE} takes the block size of the draft's config.json"
        )

    return say


def _tree(answer: Answer, depth: int, width: int, nodes: int) -> None:
    answer.options["--speculative-num-steps"] = depth
    answer.options["--speculative-eagle-topk"] = width
    answer.options["--speculative-num-draft-tokens"] = nodes + 1


def _draft(recipe: Recipe, answer: Answer, algorithm: str) -> None:
    where, draft = bare_draft(recipe, answer, TITLE)
    model, revision = hugging_face(where, draft, answer, TITLE)
    answer.options["--speculative-algorithm"] = algorithm
    answer.options["--speculative-draft-model-path"] = model
    if revision:
        answer.options["--speculative-draft-model-revision"] = revision
    if word := quantized(where, draft, QUANTIZATION, answer, TITLE):
        answer.options["--speculative-draft-model-quantization"] = word
    elif recipe.target.quantization in QUANTIZATION:
        # Without a word of its own the draft would be loaded as the target is.
        answer.options["--speculative-draft-model-quantization"] = "unquant"
    if isinstance(draft, ModelSpec) and draft.parallel.tp != recipe.target.parallel.tp:
        answer.notes.append(
            f"{where}.parallel.tp: {draft.parallel.tp} cannot be said; the draft is split like the "
            f"target ({recipe.target.parallel.tp})"
        )


METHODS: Mapping[str, Method] = {
    "none": _none,
    "ngram": _ngram,
    "draft_target": _draft_model("STANDALONE"),
    "eagle": _eagle,
    "eagle3": _draft_model("EAGLE3"),
    "mtp": _mtp,
    "dflash": _block("DFLASH"),
    "dspark": _block("DSPARK"),
}


class Sglang(Peer):
    """The server of SGLang."""

    name = "sglang"
    title = TITLE
    documented_in = "SGLang's speculative decoding guide and server arguments (2026)"
    options = OPTIONS
    methods = METHODS

    @classmethod
    def describe(cls, recipe: Recipe, answer: Answer) -> None:
        target, engine, options = recipe.target, recipe.engine, answer.options
        answer.program += ["python3", "-m", "sglang.launch_server"]
        model, revision = hugging_face("target", target, answer, TITLE)
        options["--model-path"] = model
        if revision:
            options["--revision"] = revision
        options["--dtype"] = target.dtype
        if word := quantized("target", target, QUANTIZATION, answer, TITLE):
            options["--quantization"] = word
        options["--tp-size"] = target.parallel.tp
        if target.parallel.pp > 1:
            options["--pp-size"] = target.parallel.pp
        options["--context-length"] = engine.max_seq_len
        options["--max-running-requests"] = engine.max_batch_size
        options["--host"] = recipe.serve.host
        options["--port"] = recipe.serve.http_port
        answer.notes.append(
            f"engine.max_input_len: {TITLE} limits prompt and output together "
            f"(--context-length {engine.max_seq_len}), not the prompt alone"
        )
        if engine.max_num_tokens:
            answer.notes.append(
                f"engine.max_num_tokens: {engine.max_num_tokens} has no option that counts the "
                f"same; {TITLE} splits long prompts by itself"
            )
