"""What `verify` says: what was compared, where texts part, and a verdict for each check."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from toolkit.commands.table import table
from toolkit.measure.dialects import Counts, dialect
from toolkit.measure.equivalence import Divergence, EquivalenceReport
from toolkit.measure.subject import Subject
from toolkit.measure.tasks import TaskReport
from toolkit.measure.verification import Verification

Spoken = tuple[str, int] | None  # --as, and the draft length that was asked for
_MOST = 20  # divergences that a table shows


def document(found: Verification, spoken: Spoken) -> dict[str, Any]:
    """The JSON document; `as` has every domain in another tool's words."""
    if spoken is None:
        return found.to_json()
    return {**found.to_json(), "as": {"dialect": spoken[0], "domains": _spoken(found, spoken)}}


def describe(subject: Subject, found: Verification, spoken: Spoken) -> str:
    """The same for people; the verdict is the last line."""
    parts: list[str] = []
    for check in found.checks:
        if isinstance(check, EquivalenceReport):
            parts += _equivalence(subject, check)
        elif isinstance(check, TaskReport) and check.divergences:
            parts.append(_divergences(subject, f"{check.name}: first", check.divergences))
    for row in _spoken(found, spoken) if spoken else ():
        parts.append(", ".join(f"{name} {_shown(value)}" for name, value in row.items()))
    rows = [
        [check.name, "pass" if check.passed else "FAIL", check.conclusion()]
        for check in found.checks
    ]
    return "\n\n".join([*parts, table(rows), found.conclusion()])


def _equivalence(subject: Subject, report: EquivalenceReport) -> Iterator[str]:
    header = ("domain", "prompts", f"{report.unit}s", "identical", "drafted", "accepted", "length")
    rows = [
        [
            d.domain,
            *map(str, (d.prompts, d.tokens, d.identical, d.draft_tokens, d.accepted_tokens)),
            f"{1 + d.accepted_tokens / d.verify_steps:.2f}" if d.verify_steps else "-",
        ]
        for d in report.domains
    ]
    yield table(rows, header, " rrrrrr")
    if report.control:
        yield _divergences(subject, "off/off control: first", report.control)
    else:
        yield "off/off control: plain decoding reproduces itself"
    if report.divergences:
        yield _divergences(subject, "off/on: first", report.divergences)


def _divergences(subject: Subject, title: str, found: Sequence[Divergence]) -> str:
    def shown(unit: Hashable | None) -> str:
        return "(end)" if unit is None else subject.show(unit)

    rows = [
        [
            f"{d.domain}/{d.prompt}",
            str(d.position),
            shown(d.plain_token),
            shown(d.other_token),
            "-" if d.gap is None else f"{d.gap:.4f}",
            "-" if d.bound is None else f"{d.bound:.4f}",
            d.verdict,
        ]
        for d in found[:_MOST]
    ]
    header = ("prompt", subject.unit, "plain", "other", "gap", "bound", "verdict")
    more = f"\n... and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return f"{title} divergences\n{table(rows, header, ' r  rr')}{more}"


def _spoken(found: Verification, spoken: tuple[str, int]) -> list[dict[str, Any]]:
    name, k = spoken
    return [
        {
            "domain": d.domain,
            **dialect(name).describe(
                Counts(k, d.prompts, d.tokens, d.verify_steps, d.draft_tokens, d.accepted_tokens)
            ),
        }
        for check in found.checks
        if isinstance(check, EquivalenceReport)
        for d in check.domains
    ]


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
