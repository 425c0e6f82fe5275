"""What `train-head` and `distill` share: their options, the target's files, what they print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolkit.commands.options import offline_or_environment
from toolkit.errors import InputError

if TYPE_CHECKING:
    from toolkit.recipe.schema import Recipe
    from toolkit.store import Store
    from toolkit.training.fit import Evaluation, FitOptions
    from toolkit.training.head import HeadOptions
    from toolkit.training.published import StartFrom
    from toolkit.training.session import DataOptions, TargetFiles

STEPS = ("generate", "train")

Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="DIR", help="Weights, curve, what resumes.")
]
Prompts = Annotated[
    Path | None,
    typer.Option("--prompts", metavar="PATH", help="Directory of topics and forms, or JSONL."),
]
Data = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Default: `data` in --out.")
]
Only = Annotated[
    str | None, typer.Option("--only", help="generate, or train on the data that is there.")
]
Sequences = Annotated[int, typer.Option("--sequences", min=1, help="Outputs to train on.")]
Heldout = Annotated[int, typer.Option("--heldout", min=2, help="Outputs to measure acceptance on.")]
Shard = Annotated[int, typer.Option("--shard", min=1, help="Outputs in one file.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=4, help="Of one output.")]
GenerateBatch = Annotated[
    int, typer.Option("--generate-batch", min=1, help="Outputs decoded together.")
]
Minutes = Annotated[float, typer.Option("--minutes", min=0.01, help="Of training.")]
Steps = Annotated[int | None, typer.Option("--steps", min=1, help="At most.")]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Outputs in a step.")]
LearningRate = Annotated[float, typer.Option("--learning-rate", min=1e-7, max=1.0)]
EvalMinutes = Annotated[
    float, typer.Option("--eval-minutes", min=0.01, help="Between two looks at acceptance.")
]
Patience = Annotated[
    int, typer.Option("--patience", min=1, help="Looks without a better acceptance.")
]
DraftVocab = Annotated[
    int | None, typer.Option("--draft-vocab", min=1, help="Most frequent tokens; default: all.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1)]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, or auto.")]


def say(text: str) -> None:
    """A line for people who wait."""
    typer.echo(text, err=True)


def bundled_prompts() -> Path:
    """Everyday English, for a target that speaks it."""
    from toolkit.bundled import bundled

    return bundled("recipes") / "smollm2" / "training"


def run(
    kind: Any,
    recipe: Recipe,
    store: Store,
    out: Path,
    data_dir: Path,
    only: str | None,
    data: DataOptions,
    head: HeadOptions,
    fit: FitOptions,
    *,
    offline: bool,
    device: str,
    threads: int | None,
    tokenizer: bool = False,
    on: str | None = None,
    start: StartFrom | None = None,
) -> dict[str, Any] | None:
    """Data, then training; None when only data was wanted."""
    from toolkit.checkpoint.read import Checkpoint
    from toolkit.training.published import interrupted, refuse
    from toolkit.training.session import copy_tokenizer, generate_data, train

    if only not in (None, *STEPS):
        raise InputError(f"--only {only}: expected one of {', '.join(STEPS)}")
    chosen = chosen_device(device) if only != "generate" else "cpu"
    if on is not None and only != "train":
        from toolkit.data_on_cluster import data_on

        away = offline_or_environment(offline)
        plain = target_alone(recipe)
        files = data_on(on, plain, data, data_dir, store, say, offline=away, threads=threads)
    else:
        files = target_files(recipe, store, offline)
        if start and not interrupted(out):
            refuse(kind, start.open(), Checkpoint(files.checkpoint_dir).config, head)
        if only != "train":
            generate_data(files, data, data_dir, store, say, threads=threads)
    if only == "generate":
        return None
    if start and interrupted(out):
        say(f"{out}: goes on where it was interrupted; --start-from {start.checkpoint} is ignored")
    if tokenizer:
        copy_tokenizer(files, out)
    return train(
        kind,
        files,
        data_dir,
        out,
        head,
        fit,
        lambda evaluation: say(line(evaluation)),
        threads=threads,
        device=chosen,
        start=start,
        store=store,
    )


def target_alone(recipe: Recipe) -> Recipe:
    """RECIPE's target for the cpu engine, whatever backend the recipe is for."""
    from toolkit.recipe.schema import Recipe

    return Recipe.model_validate(
        {
            "name": recipe.name,
            "backend": "cpu",
            "target": recipe.target.model_dump(),
            "speculation": {"drafter": "none"},
            "engine": recipe.engine.model_dump(),
        }
    )


def target_files(recipe: Recipe, store: Store, offline: bool) -> TargetFiles:
    """RECIPE's target, converted."""
    from toolkit.data_on_cluster import target_of
    from toolkit.execute import build
    from toolkit.plan import make_plan

    plain = target_alone(recipe)
    built = build(make_plan(plain, store), store, offline=offline_or_environment(offline))
    return target_of(make_plan(plain, store), built.tokenizer_dir, store)


def chosen_device(name: str) -> str:
    """`auto`: the GPU where torch finds one."""
    from toolkit.errors import MissingDependencyError
    from toolkit.optional import require

    torch = require("torch", extra="train", why="training")
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise InputError(f"--device {name}: expected cpu, cuda or auto")
    if name == "cuda" and not torch.cuda.is_available():
        raise MissingDependencyError("--device cuda: torch finds no CUDA device here; use cpu")
    return name


def line(found: Evaluation) -> str:
    said = " ".join(f"{x:.3f}" for x in found.conditional)
    loss = "" if found.loss is None else f"loss {found.loss:.3f}, "
    return (
        f"step {found.step}, {found.minutes:.1f} min: {loss}held-out acceptance "
        f"{said}, acceptance_length {found.acceptance_length:.3f} "
        f"({found.train_sequences} sequences)"
    )


def describe(result: dict[str, Any], out: Path) -> str:
    found = result["heldout"]
    if not found:
        return f"{out}: stopped before the first evaluation; run the same command to go on"
    said = ", ".join(f"{x:.3f}" for x in found["conditional_acceptance"])
    return (
        f"{out}: acceptance_length {found['acceptance_length']:.3f} at k = "
        f"{found['draft_tokens']} on held-out prompts (by depth: {said})"
    )
