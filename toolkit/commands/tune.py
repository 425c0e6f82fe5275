"""`spectool tune`: measure every draft length at every batch size, and say what pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolkit.commands.options import (
    Dialect,
    Json,
    Offline,
    On,
    OptionalRecipe,
    Overrides,
    StoreDir,
    Threads,
    offline_or_environment,
)
from toolkit.commands.tune_urls import Urls

if TYPE_CHECKING:
    from toolkit.commands.tune_place import Place
    from toolkit.engine.built import BuiltModels
    from toolkit.measure.prompts import PromptSet
    from toolkit.measure.trace_log import Log
    from toolkit.recipe.schema import Recipe
    from toolkit.store import Store
    from toolkit.tuning.adaptive import Trial
    from toolkit.tuning.compare import Comparison
    from toolkit.tuning.confirm import ConfirmGrid
    from toolkit.tuning.grid import Grid
    from toolkit.tuning.results import Results
    from toolkit.tuning.trace_mode import TraceReport
    from toolkit.tuning.tracing import Tracing

INTERRUPTED = 130
MODES = ("trace", "grid")


def tune(
    recipe: OptionalRecipe = None,
    k: Annotated[str | None, typer.Option("--k", metavar="2..8", help="Draft lengths.")] = None,
    batch: Annotated[
        str | None, typer.Option("--batch", metavar="1,2,4", help="Batch sizes.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", help="Output tokens of one request.")
    ] = None,
    prompts_per_domain: Annotated[
        int | None, typer.Option("--prompts-per-domain", help="Use only the first N prompts.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="0 (default) is greedy.")
    ] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", help="0: no limit.")] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", help="1: no limit.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of orders and sampling.")] = None,
    threads: Threads = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Default: ./spectool-results/<recipe name>."),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            metavar="trace|grid",
            help="trace (the default where the drafter has one): predict every point from one "
            "reading of the target's outputs, and measure the best. grid: measure them all.",
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            "--log",
            metavar="FILE.jsonl",
            help='Trace {"prompt": ..., "output": ...} lines of real traffic instead of prompt '
            "sets; give the sampling it was made with.",
        ),
    ] = None,
    url: Urls = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure anew what an earlier run already has.")
    ] = False,
    dialect: Dialect = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--compare",
            metavar="OLD.json",
            help="results.json of an earlier run: exit code 1 where a domain lost speed-up or "
            "acceptance.",
        ),
    ] = None,
    wandb: Annotated[
        str | None,
        typer.Option(
            "--wandb",
            metavar="PROJECT",
            help="Log to Weights & Biases, offline unless WANDB_MODE=online.",
        ),
    ] = None,
    override: Overrides = None,
    store: StoreDir = None,
    on: On = None,
    offline: Offline = False,
    as_json: Json = False,
) -> None:
    """Find the draft length that pays, per batch size and domain.

    The target writes each text once (kept in the store), the drafter reads it once, and a dynamic
    program over the two gives the acceptance of every k, fixed, adaptive or ended where the drafter
    is unsure. With measured step times that predicts TPOT; the winner of each batch size, a
    neighbour that comes near it and plain decoding are then measured on an eighth of the prompts,
    which corrects what was predicted over all of them (on up to half where that turns the verdict);
    only what was measured can win. For Medusa and EAGLE it also finds the best trees.

    With --mode grid, and for drafters and backends that have no trace, every k and plain decoding
    meet the same prompts in turns. Ctrl-C keeps what was measured and the same command goes on
    from there. A k above the recipe's max_draft_len may be tried; the tuned recipe gets the one
    that won.

    With --url nothing is loaded: trtllm-serve runs the recipe already, once for each draft length.

    With --on ray the rounds are measured by all nodes of a cluster that are alike, which also trace
    a prompt set each; which one ran where stands in the report.
    """
    from toolkit.commands.tune_output import say
    from toolkit.commands.tune_place import place_of
    from toolkit.commands.tune_urls import refuse_beside_urls, urls_by_length
    from toolkit.measure.dialects import dialect as known_dialect
    from toolkit.measure.prompts import load_prompt_sets
    from toolkit.measure.trace_log import load_log
    from toolkit.optional import require
    from toolkit.store import open_store
    from toolkit.tuning.compare import load_old
    from toolkit.tuning.output import results_directory, write_results
    from toolkit.tuning.setup import check, with_options
    from toolkit.tuning.wandb_log import log_to_wandb

    if dialect is not None:
        known_dialect(dialect)
    urls = urls_by_length(url) if url else {}
    where = open_store(store)
    options = {
        "k": [length for length in urls if length] or k,
        "batch": batch,
        "max_tokens": max_tokens,
        "prompts_per_domain": prompts_per_domain,
        "sampling.temperature": temperature,
        "sampling.top_k": top_k,
        "sampling.top_p": top_p,
        "sampling.seed": seed,
    }
    original = _recipe(recipe, override or [], where)
    found = with_options(original, options)
    _refuse_words(mode, log)
    if urls:
        refuse_beside_urls(found, k=k, mode=mode, log=log, on=on)
    traffic = None if log is None else load_log(log, limit=found.tune.prompts_per_domain)
    sets = (
        load_prompt_sets(found.tune.prompts, limit=found.tune.prompts_per_domain)
        if traffic is None
        else traffic.sets
    )
    check(found, sets, served=bool(urls))
    mode = "grid" if urls else _mode(mode, found, log)
    old = None if against is None else load_old(against)
    if wandb is not None:
        require("wandb", extra="wandb", why="--wandb")
    with (
        results_directory(out or Path("spectool-results") / found.name) as directory,
        place_of(
            on,
            original,
            found,
            where,
            offline=offline_or_environment(offline),
            threads=threads,
            urls=urls,
        ) as place,  # fmt: skip
    ):
        work = _Work(found, sets, place, _templates(place.built), directory, fresh)
        results = work.grid() if mode == "grid" else work.trace(traffic)
        if results is None:
            raise typer.Exit(INTERRUPTED)
        comparison = _compared(results, old, against)
        files = write_results(directory, results, original, comparison)
        say(results, comparison, files, as_json, dialect)
        if wandb is not None:
            typer.echo(f"wandb: {log_to_wandb(results, files, wandb, directory)}", err=True)
        if results.outcome.interrupted:
            raise typer.Exit(INTERRUPTED)
        if comparison and not comparison.passed:
            raise typer.Exit(1)


def _recipe(name: str | None, overrides: Sequence[str], store: Store) -> Recipe:
    """The recipe named, else ./recipe.yaml, else the one that was built last."""
    from toolkit.errors import InputError
    from toolkit.execute import last_built
    from toolkit.recipe.load import dump_recipe, load_recipe

    if name is not None or Path("recipe.yaml").is_file():
        return load_recipe(name or "recipe.yaml", overrides)
    if (built := last_built(store)) is None:
        raise InputError(
            "no RECIPE given, no ./recipe.yaml here, and nothing was built in this store yet; "
            "name a recipe (`spectool recipes` lists them)"
        )
    typer.echo(f"tuning the recipe that was built last: {built.recipe.name}", err=True)
    with TemporaryDirectory() as folder:  # overrides apply to a file
        path = Path(folder) / "last-built.yaml"
        path.write_text(dump_recipe(built.recipe), encoding="utf-8")
        return load_recipe(str(path), overrides)


def _templates(built: BuiltModels) -> dict[str, str | None]:
    from toolkit.checkpoint.tokenizer import load_tokenizer

    return {role: load_tokenizer(path).chat_template for role, path in built.tokenizers.items()}


def _refuse_words(mode: str | None, log: Path | None) -> None:
    """What no recipe makes right."""
    from toolkit.errors import InputError, did_you_mean

    if mode is not None and mode not in MODES:
        raise InputError(
            f"--mode {mode}: allowed are {' and '.join(MODES)}{did_you_mean(mode, MODES)}"
        )
    if log and mode == "grid":
        raise InputError(f"--log {log}: only a trace reads logs; leave out --mode grid")


def _mode(asked: str | None, recipe: Recipe, log: Path | None) -> str:
    """As asked; else a trace wherever there is one."""
    from toolkit.tuning.setup import require_traceable, untraceable

    if asked is None:
        reason = None if log else untraceable(recipe)
        if reason:
            typer.echo(f"measuring every point: {reason}", err=True)
        return "grid" if reason else "trace"
    if asked == "trace":
        require_traceable(recipe)  # before anything is built
    return asked


@dataclass
class _Work:
    """Everything measured so far, evaluated; None when there is nothing."""

    recipe: Recipe
    sets: Sequence[PromptSet]
    place: Place
    templates: Mapping[str, str | None]  # role -> chat template
    directory: Path
    fresh: bool

    def grid(self) -> Results | None:
        """Every point."""
        return self._measure(self._all_points())

    def trace(self, log: Log | None) -> Results | None:
        """The points that a trace says are worth it."""
        from toolkit.commands.tune_place import log as say
        from toolkit.tuning.trace_mode import predict, step_times

        tracing = self._tracing()
        grid = self._all_points()
        engine = {
            "engine": self.place.identity["engines"]["target"],
            "tokenizer": self.place.identity["tokenizer"],
            "backend": self.place.identity["backend"],
        }
        traced = tracing.trace(grid, engine, log)
        say(
            f"traced {len(traced.texts)} texts in {sum(traced.seconds.values()):.1f} s "
            f"({traced.generated_tokens} tokens generated{_cached(traced.cached)})"
        )
        times = step_times(
            grid,
            tracing.times,
            traced,
            self.directory,
            self.place.identity,
            fresh=self.fresh,
        )
        report, confirm = predict(self.recipe, grid, traced, times, log)
        for batch, lengths in confirm.at.items():
            say(f"batch {batch}: measuring k = {', '.join(map(str, lengths))} to confirm")
        at = {str(batch): list(lengths) for batch, lengths in confirm.at.items()}
        self.place.identity.update({"mode": "trace", "confirm": at})
        results = self._confirmed(confirm, report)
        if results is None or results.trace is None or results.outcome.interrupted:
            return results
        trials = self._trials(confirm, report)
        return replace(results, trace=replace(results.trace, trials=trials))

    def _confirmed(self, confirm: ConfirmGrid, report: TraceReport) -> Results | None:
        """Measured, and measured further where few rounds speak against the prediction."""
        from toolkit.commands.tune_place import log as say
        from toolkit.tuning.confirm import contested, widened
        from toolkit.tuning.session import joined

        results = self._measure(confirm, report)
        while results is not None and not results.outcome.interrupted:
            batches = contested(confirm, report.choices, results.choices)
            if not batches:
                break
            listed = ", ".join(map(str, batches))
            say(f"batch {listed}: few rounds speak against the prediction; measuring more of them")
            confirm = widened(confirm, batches)
            more = self._measure(confirm, report.beside(confirm), further=True)
            if more is None:
                break
            results = replace(more, outcome=joined(results.outcome, more.outcome))
        return results

    def _trials(self, confirm: ConfirmGrid, report: TraceReport) -> list[Trial]:
        """Policies and trees against the best fixed lengths, where they promise more."""
        from toolkit.commands.tune_place import log as say
        from toolkit.tuning.adaptive import promising, promising_tree, try_out
        from toolkit.tuning.journal import Journal

        trials: list[Trial] = []
        pairs = partial(self._tracing().pairs, confirm)
        for contest in (
            promising(report.adaptive, report.choices),
            promising_tree(report.trees, report.choices),
        ):
            asked = {str(batch): [who.to_json(), k] for batch, (who, k) in contest.items()}
            journal = Journal(self.directory, {**self.place.identity, "contest": asked})
            if self.fresh:
                journal.clear()
            trials += try_out(confirm.rounds(), contest, pairs, journal, confirm.seed)
        for trial in trials:
            say(str(trial))
        return trials

    def _tracing(self) -> Tracing:
        assert self.place.tracing is not None  # what cannot be traced is measured: see _mode
        return self.place.tracing

    def _all_points(self) -> Grid:
        from toolkit.tuning.setup import make_grid

        tokenizer = self.place.tokenizer
        return make_grid(self.recipe, self.sets, tokenizer, tokenizer.vocab_size)

    def _measure(
        self, grid: Grid, report: TraceReport | None = None, *, further: bool = False
    ) -> Results | None:
        """`further`: what this run has measured so far stays, whatever --fresh says."""
        from toolkit.provenance import provenance
        from toolkit.tuning.journal import Journal
        from toolkit.tuning.results import evaluate

        recipe = self.recipe
        journal = Journal(self.directory, self.place.identity)
        if self.fresh and not further:
            journal.clear()
        outcome = self.place.measure(grid, journal)
        if not outcome.rounds:
            return None
        return evaluate(
            recipe, grid, outcome, journal.settings, provenance(), report, self.templates
        )


def _cached(cached: bool) -> str:
    return "; they were in the store" if cached else ""


def _compared(
    results: Results, old: Mapping[str, Any] | None, path: Path | None
) -> Comparison | None:
    from toolkit.tuning.compare import compare

    if old is None or path is None:
        return None
    return compare(old, path, results.choices, results.cells, results.settings)
