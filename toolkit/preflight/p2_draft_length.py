"""P2: an engine drafts at most what it was built for, in the mode that it was built for."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.engine.trtllm.command import engine_flags
from toolkit.engine.trtllm.directory import TrtEngine
from toolkit.errors import CheckpointError
from toolkit.preflight.facts import Facts
from toolkit.preflight.report import Finding
from toolkit.recipe.release import release
from toolkit.registry import DRAFTERS

SIZES = ("max_batch_size", "max_input_len", "max_seq_len")


def check(facts: Facts) -> Iterator[Finding]:
    """The tree against the heads that are really there, then each engine against the recipe."""
    yield from _tree(facts)
    for role, engine in facts.engines.items():
        if role not in facts.models:
            roles = ", ".join(facts.models)
            yield Finding(f"{role} engine", f"this recipe has no such model; it has {roles}")
            continue
        yield from _mode(facts, role, engine)
        yield from _sizes(facts, role, engine)


def _tree(facts: Facts) -> Iterator[Finding]:
    options = facts.recipe.speculation
    tree = DRAFTERS[options.drafter].tree(options)
    try:
        config = facts.placed("target").config if "target" in facts.configs else {}
    except CheckpointError:
        return  # P4 says why
    heads = config.get("num_medusa_heads")
    if tree and heads and tree.depth > heads:
        yield Finding(
            "speculation.medusa_choices",
            f"depth {tree.depth}, but {options.drafter} heads in the file: {heads}; take paths of "
            f"at most {heads} tokens",
        )


def _mode(facts: Facts, role: str, engine: TrtEngine) -> Iterator[Finding]:
    flags = engine_flags(facts.recipe, role)
    wanted, needed = flags.get("speculative_decoding_mode"), int(flags.get("max_draft_len", 0))
    where = f"{engine.directory}/config.json"
    build = f"build the {role} engine again"
    if wanted:
        build += f" with --speculative_decoding_mode {wanted} --max_draft_len {needed}"
    if engine.mode != wanted:
        yield Finding(
            where,
            f"speculative_decoding_mode is {engine.mode or 'none'}, drafter "
            f"{facts.recipe.speculation.drafter} needs {wanted or 'none'}; {build}",
        )
    if engine.max_draft_len < needed:
        smaller = f", or set speculation.max_draft_len to {engine.max_draft_len}"
        yield Finding(
            where,
            f"max_draft_len is {engine.max_draft_len}, the recipe drafts up to {needed}: a "
            f"request with more is refused; {build}{smaller if engine.max_draft_len else ''}",
        )


def _sizes(facts: Facts, role: str, engine: TrtEngine) -> Iterator[Finding]:
    where = f"{engine.directory}/config.json"
    built, said = release(engine.version), facts.release
    if built != said:
        yield Finding(
            where,
            f"built by TensorRT-LLM {engine.version}, the recipe says "
            f"{facts.recipe.tensorrt_llm}; an engine runs only on the release that built it",
        )
    for name in SIZES:
        found, wanted = int(engine.build[name]), int(getattr(facts.recipe.engine, name))
        if found < wanted:
            yield Finding(
                where,
                f"{name} is {found}, engine.{name} of the recipe is {wanted}; build the {role} "
                f"engine again, or set engine.{name} to {found}",
            )
