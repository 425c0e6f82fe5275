"""What the loop is asked, what it answers, and the state of a request in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Literal

from toolkit.errors import InputError
from toolkit.speculation.draft_length import DraftLengthPolicy
from toolkit.speculation.grammar import Grammar, Matcher
from toolkit.speculation.interfaces import SamplingParams, SpeculationStats
from toolkit.speculation.stop import StopCondition

GREEDY = SamplingParams()
FinishReason = Literal["stop", "length", "cancelled", "failed"]


@dataclass(frozen=True, slots=True)
class Request:
    """One continuation to generate."""

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = GREEDY
    stop_tokens: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    draft_len: int | None = None  # None: as the loop's policy says; 0: plain
    grammar: Grammar | None = None  # the text obeys it, and one of its end tokens ends the text

    @property
    def end_tokens(self) -> frozenset[int]:
        """The stop tokens, those of the grammar included: a complete text cannot go on."""
        return self.stop_tokens | (self.grammar.end_tokens if self.grammar else frozenset())


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one step emitted for one request; a stop token is among the tokens."""

    request: int
    tokens: list[int]
    accepted: int
    drafted: int
    finish_reason: FinishReason | None
    error: str = ""  # why it failed


@dataclass(frozen=True, slots=True)
class Output:
    """A finished request."""

    tokens: list[int]
    finish_reason: FinishReason
    stats: SpeculationStats


@dataclass(slots=True, eq=False)
class Active:
    """A request at work or waiting for a slot."""

    id: int
    request: Request
    stop: StopCondition
    limit: int  # the text, prompt included, may grow to this length
    draft_len: int  # of its next verify step
    speculates: bool
    tokens: list[int]  # prompt and output
    matcher: Matcher | None = None  # stands behind the last token
    slot: int | None = None  # the target's sequence
    read: int = 0  # tokens in the target's cache
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    submitted_ns: int = field(default_factory=perf_counter_ns)

    @property
    def started(self) -> bool:
        """Prefill has emitted the first token."""
        return len(self.tokens) > len(self.request.prompt)

    @property
    def unread(self) -> int:
        """Tokens to read before this request can verify; of its output the last one may wait."""
        return len(self.tokens) - self.started - self.read

    def room(self, planned: int) -> int:
        """How many tokens may be drafted now, so that the bonus token still fits."""
        if not self.speculates:
            return 0
        asked = self.request.draft_len  # a request that names its length is not planned
        wanted = planned if asked is None else asked
        return min(wanted, self.limit - len(self.tokens) - 1)

    def count(self, emitted: int, drafted: int, accepted: int) -> bool:
        """Enter one emission into the counts; True for a verify step, False for prefill's."""
        stats = self.stats
        stats.output_tokens += emitted
        if not stats.prefill_tokens:
            stats.prefill_tokens = emitted
            return False
        stats.verify_steps += 1
        stats.drafted_per_step.append(drafted)
        stats.accepted_per_step.append(accepted)
        return True

    def stamp(self, now_ns: int) -> None:
        """A chunk of this request is ready."""
        stats, elapsed = self.stats, now_ns - self.submitted_ns
        stats.ttft_ns = stats.ttft_ns or elapsed
        stats.e2e_ns = elapsed
        stats.chunk_ns.append(elapsed)


def rooms(policy: DraftLengthPolicy, states: Sequence[Active], active: int) -> dict[int, int]:
    """Tokens that each of these requests may draft in this step, by its id; none left out."""
    drafting = [state for state in states if state.speculates and state.request.draft_len is None]
    planned = dict(
        zip([state.id for state in drafting], policy.plan(drafting, active), strict=True)
    )
    return {state.id: state.room(planned.get(state.id, 0)) for state in states}


def check(request: Request, vocab_size: int, max_seq_len: int) -> None:
    """Refuse what can never run, all problems at once."""
    problems, prompt = [], request.prompt
    if not prompt:
        problems.append("prompt: no tokens")
    if len(prompt) >= max_seq_len:
        problems.append(
            f"prompt: {len(prompt)} tokens; with one token to generate at most {max_seq_len} "
            "(max_seq_len) fit"
        )
    if wrong := [token for token in prompt if not 0 <= token < vocab_size]:
        problems.append(f"prompt: token {wrong[0]} is outside the vocabulary of {vocab_size}")
    if request.max_tokens < 1:
        problems.append(f"max_tokens: {request.max_tokens}, expected 1 or more")
    if problems:
        raise InputError("; ".join(problems))
