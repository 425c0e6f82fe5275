"""`spectool generate`: one prompt, streamed, with its speculation statistics."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolkit.commands.guide import AnyJson, Ebnf, JsonSchema, Regex, guide_given
from toolkit.commands.options import (
    Dialect,
    Json,
    Offline,
    Overrides,
    RecipeArgument,
    StoreDir,
    Threads,
)
from toolkit.errors import InputError, RunError

if TYPE_CHECKING:
    from toolkit.backends.runtime import Runtime
    from toolkit.speculation.grammar import Grammar
    from toolkit.speculation.interfaces import SpeculationStats
    from toolkit.speculation.request import Output, Request


def generate(
    recipe: RecipeArgument,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="What to answer.")] = None,
    prompt_file: Annotated[
        str | None, typer.Option("--prompt-file", metavar="FILE", help="Read it here; - is stdin.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it stands: no chat template.")
    ] = False,
    no_speculation: Annotated[
        bool, typer.Option("--no-speculation", help="Decode plainly, for comparison.")
    ] = False,
    k: Annotated[
        int | None, typer.Option("--k", min=1, max=512, help="Draft exactly this many a step.")
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="At most.")] = 256,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, max=100.0, help="0 is greedy.")
    ] = 0.0,
    top_k: Annotated[int, typer.Option("--top-k", min=0, help="0: no limit.")] = 0,
    top_p: Annotated[float, typer.Option("--top-p", min=1e-9, max=1.0, help="1: no limit.")] = 1.0,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, max=2**63 - 1, help="Default: a new one.")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help="End before this text; repeatable.")
    ] = None,
    json_schema: JsonSchema = None,
    regex: Regex = None,
    ebnf: Ebnf = None,
    any_json: AnyJson = False,
    threads: Threads = None,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="Ask the trtllm-serve there, load nothing."),
    ] = None,
    dialect: Dialect = None,
    override: Overrides = None,
    store: StoreDir = None,
    offline: Offline = False,
    as_json: Json = False,
) -> None:
    """Answer one prompt; text on stdout as it comes, statistics on stderr."""
    from toolkit.commands.runtime import runtime_of
    from toolkit.measure.dialects import dialect as known_dialect
    from toolkit.speculation.interfaces import SamplingParams

    if dialect is not None:
        known_dialect(dialect)
    text = _prompt_text(prompt, prompt_file)
    if k is not None and no_speculation:
        raise InputError("--k and --no-speculation exclude each other: choose one")
    if any(not string for string in stop or ()):
        raise InputError("--stop: an empty text would end every answer before it begins")
    guide = guide_given(json_schema, regex, ebnf, any_json)
    runtime = runtime_of(recipe, override or (), store, offline=offline, threads=threads, url=url)
    if k is not None and runtime.recipe.speculation.drafter == "none":
        raise InputError(f"--k {k}: {runtime.recipe.name} has drafter none, which never drafts")
    seed = secrets.randbits(63) if seed is None else seed
    request = _request(
        runtime,
        _encode(runtime, text, raw),
        max_tokens,
        SamplingParams(temperature, top_k, top_p, seed),
        tuple(stop or ()),
        runtime.grammar(guide),
    )
    output, answer = _stream(
        runtime, request, 0 if no_speculation else k, (lambda _: None) if as_json else _print
    )
    asked = 0 if no_speculation else k or runtime.recipe.speculation.max_draft_len
    spoken = dialect and _in_dialect(dialect, output.stats, asked)
    if as_json:
        found = _document(runtime, request, output, answer)
        print(json.dumps(found | ({"as": spoken} if spoken else {}), allow_nan=False))
        return
    print(flush=True)
    typer.echo(_statistics(request, output), err=True)
    if lossy := _lossy(runtime, request, output):
        typer.echo(lossy, err=True)
    if spoken:
        typer.echo(", ".join(f"{name} {_shown(value)}" for name, value in spoken.items()), err=True)


def _prompt_text(prompt: str | None, prompt_file: str | None) -> str:
    if (prompt is None) == (prompt_file is None):
        raise InputError("give the prompt with either --prompt TEXT or --prompt-file FILE")
    if prompt is not None:
        text, where = prompt, "--prompt"
    else:
        text, where = _read(str(prompt_file)), str(prompt_file)
    if not text.strip():
        raise InputError(f"{where}: the prompt is empty")
    return text


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: not readable as UTF-8 text: {error}") from None


def _encode(runtime: Runtime, text: str, raw: bool) -> tuple[int, ...]:
    from toolkit.measure.prompts import Prompt
    from toolkit.measure.run import encode_prompt

    tokens = encode_prompt(runtime.tokenizer, "prompt", Prompt("prompt", text, raw)).tokens
    limit = runtime.recipe.engine.max_input_len
    if len(tokens) > limit:
        raise InputError(
            f"prompt: {len(tokens)} tokens, but engine.max_input_len is {limit}; shorten it, or "
            f"build with --set engine.max_input_len={len(tokens)}"
        )
    return tokens


def _request(
    runtime: Runtime,
    prompt: tuple[int, ...],
    max_tokens: int,
    sampling: Any,
    stop: tuple[str, ...],
    grammar: Grammar | None,
) -> Request:
    from toolkit.speculation.request import Request

    eos = frozenset(runtime.tokenizer.eos_ids)
    return Request(
        prompt, max_tokens, sampling, stop_tokens=eos, stop_strings=stop, grammar=grammar
    )


def _stream(
    runtime: Runtime, request: Request, draft_len: int | None, show: Callable[[str], None]
) -> tuple[Output, str]:
    """Run one request; `show` gets its text as it becomes final."""
    from toolkit.speculation.request import Output
    from toolkit.speculation.stop import HeldText

    loop = runtime.loop(draft_len=draft_len)
    text, held = runtime.tokenizer.stream(), HeldText(request.stop_strings)
    pieces: list[str] = []
    tokens: list[int] = []

    def emit(piece: str) -> None:
        pieces.append(piece)
        show(piece)

    id = loop.submit(request)
    while True:
        for chunk in loop.step():
            if chunk.finish_reason == "failed":
                raise RunError(chunk.error)
            tokens += chunk.tokens
            emit(held.push(text.push(chunk.tokens)))
            if chunk.finish_reason:
                emit(held.push(text.finish()) + held.finish())
                return Output(tokens, chunk.finish_reason, loop.stats(id)), "".join(pieces)


def _print(piece: str) -> None:
    if piece:
        print(piece, end="", flush=True)


def _statistics(request: Request, output: Output) -> str:
    stats = output.stats
    line = (
        f"{stats.output_tokens} tokens, {output.finish_reason}; TTFT {stats.ttft_ns / 1e6:.0f} ms"
    )
    if stats.output_tokens > 1:
        line += f", TPOT {stats.tpot_ns / 1e6:.1f} ms ({1e9 / stats.tpot_ns:.1f} tokens/s)"
    if stats.draft_tokens:
        line += (
            f"\nacceptance_length {stats.acceptance_length:.2f} over {stats.verify_steps} verify "
            f"steps; acceptance_rate {stats.acceptance_rate:.2f} "
            f"({stats.accepted_tokens} of {stats.draft_tokens} draft tokens)"
        )
    return line if request.sampling.greedy else f"{line}\nseed {request.sampling.seed}"


def _lossy(runtime: Runtime, request: Request, output: Output) -> str | None:
    """What to say of a text that drafts have changed, by choice of the recipe."""
    from toolkit.speculation.typical import lossy

    drafted = output.stats.draft_tokens and not request.sampling.greedy
    return lossy(runtime.recipe.speculation) if drafted else None


def _document(runtime: Runtime, request: Request, output: Output, text: str) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "recipe": runtime.recipe.name,
        "drafter": runtime.recipe.speculation.drafter,
        "text": text,
        "tokens": output.tokens,
        "finish_reason": output.finish_reason,
        "lossy": _lossy(runtime, request, output),
        "prompt_tokens": len(request.prompt),
        "sampling": asdict(request.sampling),
        "stats": _counts(output.stats),
    }


def _counts(stats: SpeculationStats) -> dict[str, Any]:
    """The counters, and the ratios that are defined."""
    from dataclasses import asdict

    return {
        **asdict(stats),
        "draft_tokens": stats.draft_tokens,
        "accepted_tokens": stats.accepted_tokens,
        "acceptance_rate": stats.acceptance_rate if stats.draft_tokens else None,
        "acceptance_length": stats.acceptance_length if stats.verify_steps else None,
        "tpot_ns": stats.tpot_ns if stats.output_tokens > 1 else None,
    }


def _in_dialect(name: str, stats: SpeculationStats, k: int) -> dict[str, Any]:
    """The same counts as another tool would show them; times in ms."""
    from toolkit.measure.dialects import Counts, dialect

    counts = Counts(
        k, 1, stats.output_tokens, stats.verify_steps, stats.draft_tokens, stats.accepted_tokens
    )
    spoken = dialect(name)
    found = {"dialect": name, **spoken.describe(counts)}
    if spoken.itl and stats.output_tokens > 1:
        gap = (stats.e2e_ns - stats.ttft_ns) / max(len(stats.chunk_ns) - 1, 1)
        found["itl_ms"] = spoken.itl(stats.tpot_ns, gap) / 1e6
    return found


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
