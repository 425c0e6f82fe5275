"""From options and recipe to a grid that can run: everything impossible is refused beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from toolkit.errors import InputError
from toolkit.measure.prompts import PromptSet
from toolkit.measure.random_prompts import refuse_random
from toolkit.measure.run import Conditions, EncodedPrompt, Encoder, encode_prompt
from toolkit.recipe.schema import EngineLimits, Recipe, Speculation, Tune
from toolkit.registry import BACKENDS, DRAFTERS
from toolkit.speculation.typical import lossy
from toolkit.tuning.grid import Grid

# Field of `tune` -> the option that sets it, and what to know beyond the schema's own words.
_OPTIONS = {
    "k": ("--k", "draft lengths start at 1; plain decoding is always measured beside them"),
    "batch": ("--batch", "a batch has at least one request"),
    "max_tokens": ("--max-tokens", "TPOT needs two tokens"),
    "prompts_per_domain": ("--prompts-per-domain", ""),
    "sampling.temperature": ("--temperature", "0 is greedy"),
    "sampling.top_k": ("--top-k", "0 is no limit"),
    "sampling.top_p": ("--top-p", "1 is no limit"),
    "sampling.seed": ("--seed", ""),
}
WARM_UP_TEXT = "The kettle is on and the window is open; tell me about the rain."


def with_options(recipe: Recipe, options: Mapping[str, Any]) -> Recipe:
    """The recipe with command-line options in its tune section; None means: as the recipe says."""
    tune = recipe.tune.model_dump()
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        section, _, field = name.rpartition(".")
        (tune[section] if section else tune)[field] = value
    try:
        return recipe.model_copy(update={"tune": Tune.model_validate(tune)})
    except ValidationError as error:
        raise InputError("\n".join(_explain(error, given))) from None


def _explain(error: ValidationError, given: Mapping[str, Any]) -> list[str]:
    lines: dict[str, None] = {}
    for found in error.errors(include_url=False):
        path = [str(part) for part in found["loc"]]
        name = next((n for n in given if n.split(".") == path[: n.count(".") + 1]), "")
        option, hint = _OPTIONS.get(name, (f"tune.{'.'.join(path)}", ""))
        text = found["msg"].removeprefix("Value error, ")
        text = hint if found["type"] == "greater_than_equal" and hint else text
        lines[f"{option} {given.get(name, '')}: {text}"] = None
    return list(lines)


def check(recipe: Recipe, sets: Sequence[PromptSet], *, served: bool = False) -> None:
    """Refuse, all at once, what building or measuring would only find out later.

    `served`: by a server for each draft length.
    """
    tune, limits = recipe.tune, recipe.engine
    reason = untunable(recipe, served=served)
    problems = [reason] if reason else []
    if (batch := max(tune.batch)) > limits.max_batch_size:
        problems.append(
            f"batch size {batch} is above engine.max_batch_size ({limits.max_batch_size}); "
            f"build with --set engine.max_batch_size={batch}, or tune smaller batches"
        )
    longest = _longest_draft()
    if max(tune.k) > longest:
        problems.append(f"k = {max(tune.k)} is above the longest possible draft ({longest})")
    problems += [
        f"domain {found.domain!r} has {len(found.prompts)} prompt(s), too few for a batch of "
        f"{batch} without using one twice"
        for found in sets
        if len(found.prompts) < batch
    ]
    _refuse(problems)


def untunable(recipe: Recipe, *, served: bool = False) -> str | None:
    """Why this recipe has no draft length to choose; None: it has.

    `served`: by a server for each draft length.
    """
    if recipe.speculation.drafter == "none":
        return "speculation.drafter is none: there is no draft length to tune"
    reason = None if served else BACKENDS[recipe.backend].untunable(recipe)
    return f"backend {recipe.backend!r}: {reason}" if reason else None


def untraceable(recipe: Recipe) -> str | None:
    """Why this recipe has no trace; None: it has one.

    Some drafters do what no reading of a text foresees, and what is typical is not foretold.
    """
    backend = BACKENDS[recipe.backend]
    if reason := backend.untunable(recipe) or backend.untraceable(recipe):
        return f"backend {recipe.backend!r} has no trace: {reason}"
    options = recipe.speculation
    greedy = recipe.tune.sampling.temperature == 0
    reason = DRAFTERS[options.drafter].untraceable(options, greedy)
    reason = reason or (None if greedy else lossy(options))
    return f"drafter {options.drafter!r} has no trace: {reason}" if reason else None


def require_traceable(recipe: Recipe) -> None:
    """InputError with the reason where there is no trace."""
    if reason := untraceable(recipe):
        raise InputError(f"{reason}; measure it with tune --mode grid")


def make_grid(
    recipe: Recipe,
    sets: Sequence[PromptSet],
    tokenizer: Encoder,
    vocab_size: int | None = None,  # of the tokenizer; None: random prompts are not looked for
) -> Grid:
    """Tokens for every prompt, or the list of those that do not fit the engine."""
    domains = {
        found.domain: [encode_prompt(tokenizer, found.domain, p) for p in found.prompts]
        for found in sets
    }
    tune, limits = recipe.tune, recipe.engine
    room = longest_prompt(limits, max_tokens=tune.max_tokens, k=max(tune.k))
    problems = [
        f"{domain}: prompt {prompt.id!r} has {len(prompt.tokens)} tokens; at most {room} fit "
        f"(engine.max_input_len {limits.max_input_len}, and {tune.max_tokens} output tokens with "
        f"a draft of {max(tune.k)} within engine.max_seq_len {limits.max_seq_len})"
        for domain, prompts in domains.items()
        for prompt in prompts
        if len(prompt.tokens) > room
    ]
    _refuse(problems)
    if vocab_size is not None:
        tokens = {domain: [p.tokens for p in prompts] for domain, prompts in domains.items()}
        refuse_random(tokens, vocab_size)
    return Grid(tune.k, tune.batch, domains, seed=tune.sampling.seed or 0)


def longest_prompt(limits: EngineLimits, *, max_tokens: int, k: int) -> int:
    """Prompt tokens that leave room for the output and the last draft with its bonus token."""
    return min(limits.max_input_len, limits.max_seq_len - max_tokens - k - 1)


def conditions(recipe: Recipe, stop_tokens: frozenset[int]) -> Conditions:
    """What every point of this recipe's grid shares."""
    return Conditions(
        max_tokens=recipe.tune.max_tokens,
        sampling=recipe.tune.sampling,
        stop_tokens=stop_tokens,
    )


def warm_up_prompt(tokenizer: Encoder) -> EncodedPrompt:
    """A prompt of no domain, so that no measured prompt is warm."""
    return EncodedPrompt("warm-up", "warm-up", tuple(tokenizer.encode(WARM_UP_TEXT)))


def for_every_k(recipe: Recipe) -> Recipe:
    """The recipe with max_draft_len at the largest k: tuning may go beyond what is deployed.

    Where it counts the nodes of a tree, the tree stays: k is then how deep it is used.
    """
    if recipe.speculation.max_depth != recipe.speculation.max_draft_len:
        return recipe
    longest = {"max_draft_len": max(recipe.tune.k)}
    return recipe.model_copy(update={"speculation": recipe.speculation.model_copy(update=longest)})


def _longest_draft() -> int:
    bounds = Speculation.model_fields["max_draft_len"].metadata
    return next(int(bound.le) for bound in bounds if hasattr(bound, "le"))


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise InputError(f"cannot tune: {len(problems)} problem(s)\n{lines}")
