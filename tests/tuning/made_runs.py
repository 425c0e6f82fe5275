"""Rounds for tests: TPOT per draft length and prompt written down, everything else by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.measure.made_records import run, timed
from toolkit.measure.records import GroupRun


def round_of(
    tpots: Mapping[int, Sequence[float]],  # k -> TPOT in ms of each prompt of the group
    *,
    domain: str = "edit",
    name: str = "r",
    accepted: int = 2,
) -> list[GroupRun]:
    """One round; every draft length k drafts k tokens in each of five steps."""
    return [
        run(
            *(
                timed(
                    tpot,
                    domain=domain,
                    prompt_id=f"{name}-{place}",
                    batch_size=len(times),
                    k=k,
                    round=name,
                    verify_steps=5,
                    drafted_per_step=(k,) * 5,
                    accepted_per_step=(min(accepted, k),) * 5,
                )
                for place, tpot in enumerate(times)
            )
        )
        for k, times in tpots.items()
    ]


def rounds_of(
    *tpots: Mapping[int, Sequence[float]], domain: str = "edit", accepted: int = 2
) -> dict[str, list[GroupRun]]:
    """Several rounds of one domain by key."""
    return {
        f"{domain}-{i}-{len(next(iter(t.values())))}": round_of(
            t, domain=domain, name=f"{domain}-{i}", accepted=accepted
        )
        for i, t in enumerate(tpots)
    }
