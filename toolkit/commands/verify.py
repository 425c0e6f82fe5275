"""`spectool verify`: is the text with speculation the text without it?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.commands.options import Json, Offline, Overrides, RecipeArgument, StoreDir
from toolkit.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolkit.backends.runtime import Runtime
    from toolkit.measure.equivalence import Divergence, EquivalenceReport
    from toolkit.measure.run import EncodedPrompt


def verify(
    recipe: RecipeArgument,
    prompts: Annotated[
        int, typer.Option("--prompts", min=1, help="The first N of every domain.")
    ] = 10,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=2, help="Output tokens of each prompt.")
    ] = 64,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Prompts decoded together.")] = 4,
    k: Annotated[
        int | None, typer.Option("--k", min=1, max=512, help="Instead of the recipe's lengths.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="CPU threads; default: all cores.")
    ] = None,
    override: Overrides = None,
    store: StoreDir = None,
    offline: Offline = False,
    as_json: Json = False,
) -> None:
    """Compare greedy text with and without speculation, token by token.

    Plain decoding is compared with itself first. Where texts part, the logits there tell a
    numerical tie of the dtype from a bug; a bug ends with exit code 1. With
    `--set target.dtype=float32` nothing should part at all.
    """
    from toolkit.commands.runtime import runtime_of
    from toolkit.measure.equivalence import check_equivalence
    from toolkit.progress import progress

    runtime = runtime_of(recipe, override or (), store, offline=offline, threads=threads)
    if runtime.recipe.speculation.drafter == "none":
        raise InputError(f"{runtime.recipe.name}: drafter none decodes plainly; nothing to verify")
    encoded = _prompts(runtime, prompts)
    with progress("verify", total=3 * len(encoded)) as bar:
        report = check_equivalence(
            runtime.target,
            lambda speculate: runtime.loop(draft_len=k if speculate else 0),
            encoded,
            dtype=runtime.recipe.target.dtype,
            max_tokens=max_tokens,
            stop_tokens=frozenset(runtime.tokenizer.eos_ids),
            batch=min(batch, runtime.target.max_batch_size),
            advance=bar.advance,
        )
    print(json.dumps(report.to_json(), allow_nan=False) if as_json else _describe(runtime, report))
    if not report.passed:
        raise typer.Exit(1)


def _prompts(runtime: Runtime, count: int) -> list[EncodedPrompt]:
    """The recipe's prompt sets, through the chat template."""
    from toolkit.measure.prompts import load_prompt_sets
    from toolkit.measure.run import encode_prompt

    encoded = [
        encode_prompt(runtime.tokenizer, found.domain, prompt)
        for found in load_prompt_sets(runtime.recipe.tune.prompts, limit=count)
        for prompt in found.prompts
    ]
    limit = runtime.recipe.engine.max_input_len
    if long := [prompt for prompt in encoded if len(prompt.tokens) > limit]:
        raise InputError(
            f"{len(long)} prompt(s) are longer than engine.max_input_len ({limit} tokens), first "
            f"{long[0].domain}/{long[0].id} with {len(long[0].tokens)}"
        )
    return encoded


def _describe(runtime: Runtime, report: EquivalenceReport) -> str:
    from toolkit.commands.table import table

    header = ("domain", "prompts", "tokens", "identical", "drafted", "accepted", "length")
    rows = [
        [
            d.domain,
            *map(str, (d.prompts, d.tokens, d.identical, d.draft_tokens, d.accepted_tokens)),
            f"{1 + d.accepted_tokens / d.verify_steps:.2f}" if d.verify_steps else "-",
        ]
        for d in report.domains
    ]
    parts = [table(rows, header, " rrrrrr")]
    for title, found in (("off/off control", report.control), ("off/on", report.divergences)):
        if found:
            parts.append(f"\n{title}: first divergences\n{_divergences(runtime, found)}")
    if not report.control:
        parts.append("\noff/off control: plain decoding reproduces itself")
    return "\n".join([*parts, report.conclusion()])


def _divergences(runtime: Runtime, found: Sequence[Divergence]) -> str:
    from toolkit.commands.table import table

    def shown(token: int | None) -> str:
        return "(end)" if token is None else repr(runtime.tokenizer.token(token))

    rows = [
        [
            f"{d.domain}/{d.prompt}",
            str(d.position),
            shown(d.plain_token),
            shown(d.other_token),
            "-" if d.gap is None else f"{d.gap:.4f}",
            f"{d.bound:.4f}",
            d.verdict,
        ]
        for d in found
    ]
    return table(rows, ("prompt", "token", "plain", "other", "gap", "bound", "verdict"), " r  rr")
