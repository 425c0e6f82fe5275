"""`spectool verify`: does speculation change what the target says?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.commands.options import (
    Dialect,
    Json,
    Offline,
    Overrides,
    StoreDir,
    Threads,
    complete_recipe,
)
from toolkit.commands.runtime import runtime_of
from toolkit.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from toolkit.backends.runtime import Runtime
    from toolkit.measure.subject import Subject
    from toolkit.measure.verification import Plan
    from toolkit.measure.verify_plan import Wishes


def verify(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|URL",
            help="Recipe file, bundled recipe, or http://HOST:PORT of Triton or an OpenAI API.",
            autocompletion=complete_recipe,
        ),
    ],
    checks: Annotated[
        str | None,
        typer.Option(
            "--checks", metavar="NAMES", help="Of greedy,sampled,json,choice; default: all."
        ),
    ] = None,
    prompts: Annotated[
        int, typer.Option("--prompts", min=1, help="The first N of every domain.")
    ] = 10,
    max_tokens: Annotated[
        int,
        typer.Option(
            "--max-tokens",
            min=2,
            help="Output tokens of each prompt; the first of them "
            "comes from prefill, which drafts nothing.",
        ),
    ] = 64,
    samples: Annotated[
        int, typer.Option("--samples", min=2, help="Of each sampled prompt, per side.")
    ] = 48,
    sample_prompts: Annotated[
        int, typer.Option("--sample-prompts", min=1, help="The N shortest are sampled.")
    ] = 4,
    sample_tokens: Annotated[
        int, typer.Option("--sample-tokens", min=2, help="Output tokens of each sample.")
    ] = 16,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            min=0.01,
            max=100.0,
            help="Of samples; default: the recipe's, or 1 where that is greedy.",
        ),
    ] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", min=0, help="0: no limit.")] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", min=1e-9, max=1.0, help="1: no limit.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of samples and tests.")] = 0,
    alpha: Annotated[
        float,
        typer.Option(
            "--false-alarms",
            min=1e-6,
            max=0.2,
            help="Of so many runs on a lossless deployment this share fails by chance.",
        ),
    ] = 0.001,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Prompts decoded together.")] = 4,
    k: Annotated[
        int | None, typer.Option("--k", min=1, max=512, help="Instead of the recipe's lengths.")
    ] = None,
    plain: Annotated[
        str | None,
        typer.Option(
            "--plain", metavar="URL", help="The same model served without speculation, for a URL."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="At a URL; default: the one that is served.")
    ] = None,
    prompt_sets: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt-set", metavar="SET|FILE", help="Instead of the recipe's; repeatable."
        ),
    ] = None,
    tie: Annotated[
        float, typer.Option("--tie", min=0.0, help="At a URL: logits so near are a tie.")
    ] = 0.25,
    threads: Threads = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Also as JUnit XML, for CI.")
    ] = None,
    dialect: Dialect = None,
    override: Overrides = None,
    store: StoreDir = None,
    offline: Offline = False,
    as_json: Json = False,
) -> None:
    """Compare answers with and without speculation; exit code 1 when it is not lossless.

    greedy: plain decoding is compared with itself, then with speculation, token by token. Where
    texts part, the logits there tell a numerical tie of the dtype from a bug; with
    `--set target.dtype=float32` nothing should part at all. sampled: many texts of few prompts at
    a temperature, plain against plain and against speculation, by a permutation test. json,
    choice: is as much valid JSON, and are as many of 48 questions answered right? A recipe that
    chose typical acceptance is lossy by choice and does not pass `sampled`.
    """
    from toolkit.commands.junit import write_checks
    from toolkit.commands.verify_text import describe, document
    from toolkit.measure.dialects import dialect as known_dialect
    from toolkit.measure.verification import run
    from toolkit.measure.verify_plan import Wishes, parse_checks
    from toolkit.progress import progress
    from toolkit.speculation.typical import lossy

    if dialect is not None:
        known_dialect(dialect)
    wishes = Wishes(
        checks=parse_checks(checks),
        prompts=prompts,
        max_tokens=max_tokens,
        samples=samples,
        sample_prompts=sample_prompts,
        sample_tokens=sample_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        alpha=alpha,
    )
    served, chosen = "://" in recipe, None
    _refuse_options(served, {"--plain": plain, "--model": model}, override, threads)
    sources = {Path(name).stem: name for name in prompt_sets or ()}
    if served:
        subject, plan = _of_server(recipe, plain, model, wishes, k, batch, tie, sources)
        asked = k
    else:
        runtime = runtime_of(recipe, override or (), store, offline=offline, threads=threads)
        subject, plan = _of_recipe(runtime, wishes, k, batch, sources)
        asked = k or runtime.recipe.speculation.max_draft_len
        chosen = lossy(runtime.recipe.speculation)
    with progress("verify", total=plan.answers) as bar:
        found = run(subject, plan, advance=bar.advance, starting=bar.describe, lossy=chosen)
    if junit is not None:
        write_checks(junit, f"spectool verify {recipe}", found.checks)
    spoken = (dialect, asked or 0) if dialect else None
    if as_json:
        print(json.dumps(document(found, spoken), allow_nan=False))
    else:
        print(describe(subject, found, spoken))
    if not found.passed:
        raise typer.Exit(1)


def _refuse_options(
    served: bool,
    of_servers: Mapping[str, str | None],
    override: Sequence[str] | None,
    threads: int | None,
) -> None:
    """An option that would do nothing must not look as if it did."""
    of_recipes = {"--set": override, "--threads": threads}
    given = [name for name, value in (of_recipes if served else of_servers).items() if value]
    if given:
        kinds = ("a recipe", "a server's URL") if served else ("a server's URL", "a recipe")
        raise InputError(f"{', '.join(given)}: only for {kinds[0]}, not for {kinds[1]}")


def _of_server(
    url: str,
    plain: str | None,
    model: str | None,
    wishes: Wishes,
    k: int | None,
    batch: int,
    tie: float,
    sources: Mapping[str, str],
) -> tuple[Subject, Plan]:
    """A server with and without speculation, and prompts as they stand: it has no template."""
    from toolkit.measure.prompts import BUNDLED, load_prompt_sets
    from toolkit.measure.verify_plan import Room, make_plan
    from toolkit.recipe.schema import Sampling
    from toolkit.serving.subject import open_subject

    plan = make_plan(
        wishes,
        load_prompt_sets(sources or {name: name for name in BUNDLED}, limit=wishes.prompts),
        lambda domain, prompt: (),
        room=Room(),
        sampling=Sampling(),
        note=lambda line: typer.echo(line, err=True),
    )
    return open_subject(url, plain, model=model, k=k, batch=batch, tie=tie), plan


def _of_recipe(
    runtime: Runtime, wishes: Wishes, k: int | None, batch: int, sources: Mapping[str, str]
) -> tuple[Subject, Plan]:
    """The recipe's models, loaded, and its prompt sets."""
    from toolkit.measure.prompts import Prompt, load_prompt_sets
    from toolkit.measure.run import encode_prompt
    from toolkit.measure.subject import EngineSubject
    from toolkit.measure.verify_plan import Room, make_plan

    recipe, tokenizer = runtime.recipe, runtime.tokenizer
    if recipe.speculation.drafter == "none":
        raise InputError(f"{recipe.name}: drafter none decodes plainly; nothing to verify")

    def encode(domain: str, prompt: Prompt) -> tuple[int, ...]:
        return encode_prompt(tokenizer, domain, prompt).tokens

    if recipe.guided_decoding and "choice" in wishes.checks:
        typer.echo("choice: left out, the recipe's grammar allows no free answers", err=True)
        wishes = replace(wishes, checks=[name for name in wishes.checks if name != "choice"])
    plan = make_plan(
        wishes,
        load_prompt_sets(sources or recipe.tune.prompts, limit=wishes.prompts),
        encode,
        vocab_size=tokenizer.vocab_size,
        room=Room(recipe.engine.max_input_len, recipe.engine.max_seq_len),
        sampling=recipe.tune.sampling,
        note=lambda line: typer.echo(line, err=True),
    )
    subject = EngineSubject(
        runtime.target,
        lambda speculate: runtime.loop(draft_len=k if speculate else 0),
        dtype=recipe.target.dtype,
        stop_tokens=frozenset(tokenizer.eos_ids),
        grammar=runtime.grammar(),
        batch=min(batch, runtime.target.max_batch_size),
        decode=tokenizer.decode,
        show=lambda token: repr(tokenizer.token(token)),
    )
    return subject, plan
