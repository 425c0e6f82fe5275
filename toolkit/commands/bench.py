"""`spectool bench`: load on a running server, and what it costs its clients."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolkit.commands.options import Json
from toolkit.errors import InputError, RunError

if TYPE_CHECKING:
    from toolkit.serving.client import Ask
    from toolkit.serving.load.arrivals import Arrivals
    from toolkit.serving.load.figures import Figures
    from toolkit.serving.load.saturation import Tried
    from toolkit.serving.load.session import Load

_TIMES = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "ICL": "icl_ms", "E2E": "e2e_ms"}

_MOST_MESSAGES = 5


def bench(
    url: Annotated[str, typer.Argument(metavar="URL", help="gRPC address, like 127.0.0.1:8001.")],
    model: Annotated[
        str | None, typer.Option("--model", help="Default: the one that clients are meant to ask.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", min=1, max=4096, help="Closed loop: so many clients [8]."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", min=0.001, help="Open loop: requests/s, at random (Poisson)."),
    ] = None,
    requests: Annotated[
        int | None, typer.Option("--requests", min=1, help="Stop after so many [64].")
    ] = None,
    duration: Annotated[
        float | None, typer.Option("--duration", min=0.1, help="Stop after so many seconds.")
    ] = None,
    tpot_limit: Annotated[
        float | None,
        typer.Option(
            "--tpot-limit", min=0.001, help="Search the most load (ms): rate, or clients."
        ),
    ] = None,
    percentile: Annotated[
        float, typer.Option("--percentile", help="Of TPOT for --tpot-limit: 50, 90, 99 or 99.9.")
    ] = 99.0,
    prompts: Annotated[
        list[str] | None,
        typer.Option("--prompts", metavar="SET|FILE", help="Bundled set or JSONL; repeatable."),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=2, help="Output tokens of each request.")
    ] = 64,
    stop_early: Annotated[
        bool, typer.Option("--stop-early", help="Let the end token end a request.")
    ] = False,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, max=100.0)] = 0.0,
    k: Annotated[
        int | None, typer.Option("--k", min=0, max=512, help="Draft length; 0: no speculation.")
    ] = None,
    cancel_rate: Annotated[
        float, typer.Option("--cancel-rate", min=0.0, max=1.0, help="Part that clients cancel.")
    ] = 0.0,
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", metavar="DIR", help="Render its chat template; count tokens."),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds before a request has failed.")
    ] = 600.0,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    aiperf: Annotated[
        bool, typer.Option("--aiperf", help="Only print the load as an AIPerf command.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Put load on a served model over gRPC streaming; say what its clients see.

    Latencies of an open loop count from when a request was due, so a server that falls behind
    cannot hide it.
    """
    from toolkit.progress import progress
    from toolkit.serving.load.session import Load

    load = Load(
        address=_address(url),
        model=model,
        asks=_asks(prompts, tokenizer, max_tokens, stop_early, temperature, k, seed),
        arrivals=_arrivals(concurrency, rate, seed),
        requests=requests or (None if duration else 64),
        seconds=duration,
        cancel_rate=cancel_rate,
        timeout_s=timeout,
        seed=seed,
        tokenizer=tokenizer,
    )
    if aiperf:
        print(_aiperf(load, url))
        return
    limit = _limit(tpot_limit, percentile)
    if limit is None:
        with progress("bench", load.requests or 0) as bar:
            name, found = load.run(advance=bar.advance)
        print(_document(name, load, found) if as_json else describe(name, load.arrivals, found))
        if found.error_rate + found.refusal_rate == 1.0:
            raise RunError(f"{load.address}: no request was served")
        return
    with progress("bench: searching", 1) as bar:
        name, tried = load.saturate(limit, on_try=lambda load: bar.describe(f"bench: {load}"))
    if as_json:
        print(json.dumps({"model": name, "limit": vars(limit), "tried": _tried_json(tried)}))
    else:
        print(_describe_search(tried, load.arrivals))


def _address(url: str) -> str:
    """host:port of gRPC, however it is written."""
    scheme, _, rest = url.rpartition("://")
    if scheme not in ("", "grpc"):
        raise InputError(
            f"{url}: bench streams over gRPC; give its address, like 127.0.0.1:8001 "
            "(spectool serve prints it)"
        )
    host, _, port = rest.rstrip("/").rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"{url}: expected HOST:PORT of gRPC, like 127.0.0.1:8001")
    return f"{host}:{port}"


def _arrivals(concurrency: int | None, rate: float | None, seed: int) -> Arrivals:
    from toolkit.serving.load.arrivals import Closed, Poisson

    if concurrency is not None and rate is not None:
        raise InputError("--concurrency and --rate: a load is a closed or an open loop, not both")
    return Closed(concurrency or 8) if rate is None else Poisson(rate, seed)


def _limit(tpot_ms: float | None, percentile: float) -> Any:
    from toolkit.serving.load.figures import PERCENTILES
    from toolkit.serving.load.saturation import Limit

    if percentile not in PERCENTILES:
        known = ", ".join(f"{p:g}" for p in PERCENTILES)
        raise InputError(f"--percentile {percentile:g}: expected one of {known}")
    return None if tpot_ms is None else Limit(tpot_ms, percentile)


def _asks(
    prompts: Sequence[str] | None,
    tokenizer: Path | None,
    max_tokens: int,
    stop_early: bool,
    temperature: float,
    k: int | None,
    seed: int,
) -> list[Ask]:
    """One request for each prompt, the domains taking turns."""
    from toolkit.measure.prompts import BUNDLED, load_prompt_sets
    from toolkit.serving.client import Ask
    from toolkit.serving.load.session import shown

    sources = prompts or BUNDLED
    sets = load_prompt_sets({Path(source).stem: source for source in sources})
    texts = shown(sets, tokenizer)
    return [
        Ask(
            text_input=text,
            max_tokens=max_tokens,
            stream=True,
            end_id=None if stop_early else -1,
            temperature=temperature or None,
            seed=seed + i if temperature else None,
            num_draft_tokens=k,
            return_perf_metrics=True,
            return_num_output_tokens=True,
        )
        for i, text in enumerate(texts)
    ]


def _aiperf(load: Load, url: str) -> str:
    from toolkit.serving.load.aiperf import aiperf_command

    host, _, port = load.address.rpartition(":")
    return aiperf_command(
        f"http://{host}:{int(port) - 1}",
        load.model or "spectool",
        load.arrivals,
        tokenizer=str(load.tokenizer or "TOKENIZER_DIR"),
        requests=load.requests or 64,
        max_tokens=load.asks[0].max_tokens,
    )


def _document(model: str, load: Load, found: Figures) -> str:
    document = {"model": model, "load": str(load.arrivals), **found.to_json()}
    return json.dumps(document, allow_nan=False)


def describe(model: str, arrivals: Arrivals, found: Figures) -> str:
    """The figures of one load, for people."""
    from toolkit.commands.table import table
    from toolkit.serving.load.figures import PERCENTILES

    header = ("ms", *("max" if p == 100 else f"p{p:g}" for p in PERCENTILES))
    rows = [
        (name, *(f"{value:.1f}" for value in getattr(found, field).values()))
        for name, field in _TIMES.items()
    ]
    lines = [
        f"{model}: {arrivals}, {found.requests} requests in {found.wall_s:.1f} s",
        table(rows, header, " rrrrr"),
        f"throughput  {found.output_throughput:.1f} tokens/s{_steady(found)}, "
        f"{found.request_throughput:.2f} requests/s",
    ]
    if found.draft_tokens:
        lines.append(
            f"acceptance  {found.acceptance_rate:.1%} of {found.draft_tokens} draft tokens, "
            f"acceptance length {found.acceptance_length:.2f}"
        )
    lines.append(
        f"requests    {found.error_rate:.1%} failed, {found.refusal_rate:.1%} refused, "
        f"{found.cancel_rate:.1%} cancelled"
    )
    messages = sorted(found.messages.items(), key=lambda item: -item[1])
    lines += [f"  {count} x {message}" for message, count in messages[:_MOST_MESSAGES]]
    if more := messages[_MOST_MESSAGES:]:
        lines.append(f"  and {sum(count for _, count in more)} more ({len(more)} other messages)")
    if found.late_ms > 50:
        lines.append(
            f"warning: this client sent a request {found.late_ms:.0f} ms late; its machine is "
            "busy and its figures are worse than the server's"
        )
    return "\n".join(lines)


def _steady(found: Figures) -> str:
    if math.isnan(found.steady_throughput):
        return ""
    return f" ({found.steady_throughput:.1f} until the last request was sent)"


def _tried_json(tried: Sequence[Tried]) -> list[dict[str, Any]]:
    return [{"load": t.load, "broken": t.broken, **t.figures.to_json()} for t in tried]


def _describe_search(tried: Sequence[Tried], arrivals: Arrivals) -> str:
    from toolkit.commands.table import table
    from toolkit.serving.load.arrivals import Closed
    from toolkit.serving.load.saturation import best

    unit = "clients" if isinstance(arrivals, Closed) else "requests/s"
    rows = [
        (
            f"{t.load:.3g}",
            f"{t.figures.output_throughput:.1f}",
            f"{t.figures.tpot_ms[50.0]:.1f}",
            f"{t.figures.tpot_ms[99.0]:.1f}",
            f"{t.figures.ttft_ms[99.0]:.1f}",
            t.broken or "holds",
        )
        for t in sorted(tried, key=lambda t: t.load)
    ]
    header = (unit, "tokens/s", "TPOT p50", "TPOT p99", "TTFT p99", "")
    found = best(list(tried))
    verdict = f"most load: {found.load:.3g} {unit}" if found else "no load holds the limit"
    return f"{table(rows, header, 'rrrrr')}\n{verdict}"
