"""The recipe's grammar, compiled over the target's own tokens."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.errors import SpectoolError
from toolkit.preflight.facts import Facts
from toolkit.preflight.report import Finding, findings_of
from toolkit.speculation.grammar import guide_of

_WHERE = "guided_decoding"


def check_guided(facts: Facts) -> Iterator[Finding]:
    """One that does not compile, or that allows no text, is refused with the reason."""
    options = facts.recipe.guided_decoding
    if options is None:
        return
    try:
        guide = guide_of(options)
        tokenizer = facts.tokenizers.get("target")
        if tokenizer is None:
            yield Finding(_WHERE, "not compiled: the target's tokenizer is not here yet", "note")
            return
        tokenizer.grammar(guide)
    except SpectoolError as error:
        yield from findings_of(_WHERE, error)
        return
    yield Finding(_WHERE, "every output obeys it, in verify too; tune looks at free text", "note")
