"""`spectool distill`: a small draft model from some of the target's layers."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from toolkit.commands import training as shared
from toolkit.commands.options import (
    Json,
    Offline,
    On,
    Overrides,
    RecipeArgument,
    StoreDir,
    Threads,
)
from toolkit.errors import InputError


def distill(
    recipe: RecipeArgument,
    out: shared.Out,
    layers: Annotated[
        str | None,
        typer.Option("--layers", metavar="0,1,2,29", help="Of the target; default: RECIPE's."),
    ] = None,
    prompts: shared.Prompts = None,
    data: shared.Data = None,
    only: shared.Only = None,
    sequences: shared.Sequences = 4096,
    heldout: shared.Heldout = 256,
    shard: shared.Shard = 256,
    max_tokens: shared.MaxTokens = 112,
    generate_batch: shared.GenerateBatch = 64,
    minutes: shared.Minutes = 75.0,
    steps: shared.Steps = None,
    batch: shared.Batch = 8,
    learning_rate: shared.LearningRate = 3e-4,
    eval_minutes: shared.EvalMinutes = 4.0,
    patience: shared.Patience = 8,
    draft_vocab: Annotated[
        int | None,
        typer.Option(
            "--draft-vocab",
            min=1,
            help="Say the most frequent tokens only: faster drafts, on backend cpu; default: all.",
        ),
    ] = None,
    loss_vocab: Annotated[
        int | None,
        typer.Option("--loss-vocab", min=1, help="Learn on the most frequent tokens; faster."),
    ] = None,
    seed: shared.Seed = 0,
    device: shared.Device = "auto",
    threads: Threads = None,
    override: Overrides = None,
    store: StoreDir = None,
    on: On = None,
    offline: Offline = False,
    as_json: Json = False,
) -> None:
    """Teach some layers of RECIPE's target to say what the whole target says.

    The result is a Hugging Face checkpoint with the target's tokenizer: use it as
    `speculation: {drafter: draft_target, draft: {checkpoint: DIR}}`. With --draft-vocab it drafts
    no other tokens than those (outputs do not change), and backend cpu alone reads it.
    """
    from toolkit.recipe.load import load_recipe
    from toolkit.store import open_store
    from toolkit.training.draft import DraftModel
    from toolkit.training.fit import FitOptions
    from toolkit.training.head import HeadOptions
    from toolkit.training.session import DataOptions

    parsed = load_recipe(recipe, override or ())
    chosen = _layers(layers) or _recipes_layers(parsed.speculation)
    if not chosen:
        raise InputError(
            f"{parsed.name}: which layers? Give --layers, or a draft with `layers` in the recipe"
        )
    if draft_vocab and loss_vocab:
        raise InputError(
            "--draft-vocab and --loss-vocab: a draft learns what it can say; leave --loss-vocab out"
        )
    result = shared.run(
        DraftModel,
        parsed,
        open_store(store),
        out,
        data or out / "data",
        only,
        DataOptions(
            prompts=prompts or shared.bundled_prompts(),
            sequences=sequences,
            heldout=heldout,
            shard=shard,
            max_tokens=max_tokens,
            batch=generate_batch,
            seed=seed,
        ),
        HeadOptions(
            draft_vocab=draft_vocab or loss_vocab,
            reduced=draft_vocab is not None,
            layers=chosen,
            seed=seed,
        ),
        FitOptions(
            minutes=minutes,
            max_steps=steps,
            batch=batch,
            learning_rate=learning_rate,
            eval_minutes=eval_minutes,
            patience=patience,
            seed=seed,
        ),
        offline=offline,
        device=device,
        threads=threads,
        tokenizer=True,
        on=on,
    )
    if result is not None:
        print(json.dumps(result, allow_nan=False) if as_json else shared.describe(result, out))


def _layers(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    from toolkit.recipe.schema import expand_range

    try:
        numbers: tuple[int, ...] = expand_range(text)
    except ValueError as error:
        raise InputError(f"--layers {text}: {error}") from None
    return numbers


def _recipes_layers(speculation: object) -> tuple[int, ...]:
    draft = getattr(speculation, "draft", None)
    return getattr(draft, "layers", None) or ()
