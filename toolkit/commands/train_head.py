"""`spectool train-head`: drafting heads for a target, on the target's own outputs."""

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
    offline_or_environment,
)
from toolkit.errors import InputError


def train_head(
    recipe: RecipeArgument,
    out: shared.Out,
    drafter: Annotated[
        str | None, typer.Option("--drafter", help="medusa, eagle or eagle3; default: RECIPE's.")
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
    learning_rate: shared.LearningRate = 1e-3,
    eval_minutes: shared.EvalMinutes = 4.0,
    patience: shared.Patience = 8,
    draft_vocab: shared.DraftVocab = None,
    start_from: Annotated[
        str | None,
        typer.Option(
            "--start-from",
            metavar="DIR",
            help="Go on from a published head (or hub id) instead of from the target's layer.",
        ),
    ] = None,
    heads: Annotated[
        int | None,
        typer.Option(
            "--heads", min=1, max=16, help="Medusa: how many; default: 4, or --start-from's."
        ),
    ] = None,
    head_layers: Annotated[
        int | None,
        typer.Option(
            "--head-layers",
            min=1,
            max=8,
            help="Medusa: residual layers; default: 1, or --start-from's.",
        ),
    ] = None,
    full_lm_head: Annotated[
        bool, typer.Option("--full-lm-head", help="Medusa: write the target's lm_head per head.")
    ] = False,
    layers_0: Annotated[
        bool, typer.Option("--layers-0", help="EAGLE-3: layers.0.* instead of midlayer.*.")
    ] = False,
    seed: shared.Seed = 0,
    device: shared.Device = "auto",
    threads: Threads = None,
    override: Overrides = None,
    store: StoreDir = None,
    on: On = None,
    offline: Offline = False,
    as_json: Json = False,
) -> None:
    """Train Medusa, EAGLE or EAGLE-3 heads for RECIPE's target, on what the target itself says.

    The target answers prompts at full batch; what it computed is kept, so that training never runs
    it. The head is written whenever acceptance on held-out prompts is better than before. The same
    command goes on where an earlier one was interrupted. With --start-from, training begins with
    that head's weights, sizes and vocabulary, and what is written accepts no less of them.
    """
    from toolkit.recipe.load import load_recipe
    from toolkit.registry import HEAD_TRAINERS
    from toolkit.store import open_store
    from toolkit.training.fit import FitOptions
    from toolkit.training.head import HeadOptions
    from toolkit.training.published import StartFrom
    from toolkit.training.session import DataOptions

    parsed = load_recipe(recipe, override or ())
    kind = drafter or parsed.speculation.drafter
    if kind not in HEAD_TRAINERS:
        raise InputError(
            f"{parsed.name}: nothing to train for drafter {kind}; choose one with --drafter "
            f"({', '.join(HEAD_TRAINERS)}), or train a small draft with spectool distill"
        )
    result = shared.run(
        HEAD_TRAINERS[kind],
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
            draft_vocab=draft_vocab,
            heads=heads,
            head_layers=head_layers,
            full_lm_head=full_lm_head,
            layer_names="layers.0." if layers_0 else "midlayer.",
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
        on=on,
        start=StartFrom(start_from, kind, offline_or_environment(offline)) if start_from else None,
    )
    if result is not None:
        print(json.dumps(result, allow_nan=False) if as_json else shared.describe(result, out))
