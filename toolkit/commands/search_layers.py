"""`spectool search-layers`: which of the target's own layers draft best for it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.commands.options import (
    Json,
    Offline,
    Overrides,
    RecipeArgument,
    StoreDir,
    Threads,
    offline_or_environment,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolkit.backends.runtime import Runtime
    from toolkit.checkpoint.read import Checkpoint
    from toolkit.recipe.schema import Recipe
    from toolkit.speculation.trace import TracedText
    from toolkit.tuning.layer_search import Layers, Subset


def search_layers(
    recipe: RecipeArgument,
    k: Annotated[str, typer.Option("--k", metavar="1..4", help="Draft lengths.")] = "1..4",
    prompts_per_domain: Annotated[
        int, typer.Option("--prompts-per-domain", min=1, help="Prompts of each domain.")
    ] = 2,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=2, help="Output tokens of each.")
    ] = 48,
    threads: Threads = None,
    override: Overrides = None,
    store: StoreDir = None,
    offline: Offline = False,
    as_json: Json = False,
) -> None:
    """Search for the layers that drafter self_speculation should keep.

    The target writes a few answers; then every layer is left out by itself, and subsets are read
    over the same answers, the layer that is missed least leaving next. Predicted speed-ups count
    what a step reads from memory, so they are for batch 1; `spectool tune` measures the winner.
    """
    from toolkit.checkpoint.read import Checkpoint
    from toolkit.execute import build
    from toolkit.plan import make_plan
    from toolkit.progress import progress
    from toolkit.recipe.load import load_recipe
    from toolkit.store import open_store
    from toolkit.tuning.layer_search import search
    from toolkit.tuning.setup import with_options

    options = {"k": k, "prompts_per_domain": prompts_per_domain, "max_tokens": max_tokens}
    found = _plain(with_options(load_recipe(recipe, override or []), options))
    where = open_store(store)
    plan = make_plan(found, where)
    built = build(plan, where, offline=offline_or_environment(offline))
    [checkpoint] = [a for a in make_plan(found, where).artefacts if a.kind == "checkpoints"]
    assert checkpoint.path
    whole = Checkpoint(checkpoint.path)
    count = int(whole.config["num_hidden_layers"])
    texts = _texts(found, built, threads)
    with progress("read subsets of the layers", 2 * count - 1) as bar:
        subsets = search(
            count, lambda layers: _score(layers, whole, texts, found, threads), bar.advance
        )
    best = max(subsets, key=lambda subset: subset.speedup)
    if as_json:
        print(json.dumps({"best": asdict(best), "subsets": [asdict(s) for s in subsets]}))
    else:
        print(_table(subsets, best))


def _plain(recipe: Recipe) -> Recipe:
    """The target alone: no draft is built for the search."""
    from toolkit.errors import InputError
    from toolkit.recipe.schema import Recipe

    if recipe.backend != "cpu":
        raise InputError(
            f"{recipe.name}: backend {recipe.backend!r}; the search reads layers with backend cpu: "
            "use --set backend=cpu"
        )
    data = {**recipe.model_dump(mode="json"), "speculation": {"drafter": "none"}}
    return Recipe.model_validate(data)


def _texts(recipe: Recipe, built: object, threads: int | None) -> list[TracedText]:
    from toolkit.backends.runtime import open_runtime
    from toolkit.measure.prompts import load_prompt_sets
    from toolkit.measure.run import encode_prompt, sampling_of
    from toolkit.speculation.request import Request
    from toolkit.speculation.trace import TracedText

    runtime: Runtime = open_runtime(built, threads=threads)  # type: ignore[arg-type]
    sets = load_prompt_sets(recipe.tune.prompts, limit=recipe.tune.prompts_per_domain)
    prompts = [
        encode_prompt(runtime.tokenizer, found.domain, prompt)
        for found in sets
        for prompt in found.prompts
    ]
    eos = frozenset(runtime.tokenizer.eos_ids)
    requests = [
        Request(p.tokens, recipe.tune.max_tokens, stop_tokens=eos, draft_len=0) for p in prompts
    ]
    return [
        TracedText(p.tokens, tuple(output.tokens), sampling_of(p, recipe.tune.sampling))
        for p, output in zip(prompts, runtime.loop().generate(requests), strict=True)
        if len(output.tokens) > 1
    ]


def _score(
    layers: Layers,
    whole: Checkpoint,
    texts: Sequence[TracedText],
    recipe: Recipe,
    threads: int | None,
) -> Subset:
    from toolkit.backends.cpu.backend import CpuBackend
    from toolkit.engine.cpu import build_engine_of
    from toolkit.engine.part import PartOfCheckpoint, draft_cost
    from toolkit.speculation.drafters.draft_target import DraftTargetDrafter
    from toolkit.tuning.layer_search import judge

    with TemporaryDirectory(prefix="spectool-layers-") as directory:
        build_engine_of(PartOfCheckpoint(whole, layers), Path(directory), recipe.engine)
        drafter = DraftTargetDrafter(CpuBackend().load(Path(directory), threads=threads))
        traces = [drafter.trace(text, max(recipe.tune.k)) for text in texts]
    return judge(layers, traces, draft_cost(whole, len(layers)), recipe.tune.k)


def _table(subsets: Sequence[Subset], best: Subset) -> str:
    from toolkit.commands.table import table

    rows = [
        (
            str(len(subset.layers)),
            str(subset.k),
            f"{subset.acceptance_length:.2f}",
            f"{subset.cost:.2f}",
            f"{subset.speedup:.2f}x" + (" <" if subset is best else ""),
        )
        for subset in subsets
    ]
    verdict = (
        "worth measuring with `spectool tune`"
        if best.speedup > 1
        else "no subset pays: this target has no layers to spare"
    )
    return (
        table(rows, ("layers", "k", "length", "cost", "predicted"), "rrrrr")
        + f"\nlayers: {list(best.layers)}\n{verdict}"
    )
