"""One request's part of a step: what is fed to the target, and what is chosen from its answer."""

from __future__ import annotations

from functools import partial

import numpy as np

from toolkit.speculation.grammar import masked_rows
from toolkit.speculation.interfaces import Proposal, Step, StepOutput
from toolkit.speculation.request import Active
from toolkit.speculation.sampling import LazyProbabilities, Role, most_likely, uniform, uniforms
from toolkit.speculation.token_tree import ancestors, depths
from toolkit.speculation.typical import verify_typical
from toolkit.speculation.verify import verify, verify_greedy
from toolkit.speculation.verify_tree import verify_tree, verify_tree_greedy


def verify_step(state: Active, proposal: Proposal, hidden: bool) -> Step:
    """The last token and the draft behind it, with a row of logits for each."""
    assert state.slot is not None
    tokens = np.array([state.tokens[-1], *proposal.tokens], dtype=np.int64)
    if proposal.parents is None:
        return Step(state.slot, tokens, rows=len(tokens), hidden=hidden)
    parents = (-1, *(parent + 1 for parent in proposal.parents))  # the last token is the root
    return Step(
        state.slot,
        tokens,
        rows=len(tokens),
        positions=state.read - 1 + np.array(depths(parents), dtype=np.int64),
        mask=ancestors(parents),
        hidden=hidden,
    )


def prefill_step(state: Active, count: int, hidden: bool) -> Step:
    """The next `count` unread tokens; only the last of a prompt wants logits."""
    assert state.slot is not None
    tokens = np.array(state.tokens[state.read : state.read + count], dtype=np.int64)
    rows = int(count == state.unread and not state.started)
    return Step(state.slot, tokens, rows=rows, hidden=hidden)


def choose(
    state: Active, proposal: Proposal, output: StepOutput, epsilon: float | None = None
) -> tuple[list[int], list[int]]:
    """The new tokens, and which of the proposal's stand (the path, for a tree).

    With `epsilon`, requests that sample accept what is typical: see typical.py.
    """
    sampling, position = state.request.sampling, len(state.tokens)
    proposal = proposal.first(proposal.drafted)  # nobody accepts a probe
    drafted = len(proposal.tokens)
    logits = output.logits[: drafted + 1]
    if state.matcher:
        logits = masked_rows(logits, state.matcher.rows(proposal.tokens, proposal.parents))
    if epsilon is not None and not sampling.greedy:
        return verify_typical(
            proposal.tokens,
            range(-1, drafted - 1) if proposal.parents is None else proposal.parents,
            LazyProbabilities(logits, sampling),
            epsilon,
            partial(_number, sampling.seed, position),
        )
    if proposal.parents is not None:
        if sampling.greedy:
            chosen = most_likely(logits)
            return verify_tree_greedy(proposal.tokens, proposal.parents, chosen)
        return verify_tree(
            proposal.tokens,
            proposal.parents,
            proposal.probs,
            LazyProbabilities(logits, sampling),
            partial(_number, sampling.seed, position),
        )
    if sampling.greedy:
        tokens, accepted = verify_greedy(proposal.tokens, most_likely(logits))
    else:
        tokens, accepted = verify(
            proposal.tokens,
            proposal.probs,
            LazyProbabilities(logits, sampling),
            uniforms(sampling.seed, position, drafted, Role.ACCEPT),
            uniforms(sampling.seed, position, drafted + 1, Role.EMIT),
        )
    return tokens, list(range(accepted))


def _number(seed: int, position: int, depth: int, role: Role, sibling: int = 0) -> float:
    return uniform(seed, position + depth, role, sibling)
