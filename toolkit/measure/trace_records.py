"""A trace from what a long draft met in a measured run: which of the text's tokens were foreseen.

In each verify step the drafts that stood were foreseen, and the token that replaced the first wrong
one was not. Only the bonus token after a whole draft says nothing: it gets the chance that the last
position of a draft has. For drafters whose choice depends on the text alone that is their trace.
"""

from __future__ import annotations

import numpy as np

from toolkit.measure.records import RequestRecord
from toolkit.speculation.trace import DraftTrace, by_position


def trace_of(record: RequestRecord, last: float) -> DraftTrace:
    """Drafts of up to `record.k` tokens; `last`: the chance of a draft's last position."""
    k, starts = record.k, max(0, record.output_tokens - 1)
    stands, offered = [], []
    for drafted, accepted in zip(record.drafted_per_step, record.accepted_per_step, strict=True):
        after = last if accepted == drafted == k else 0.0
        stands += [1.0] * accepted + [after]
        # From within a draft that fell short of k, as much as is left of it.
        short = drafted < k
        offered += [drafted - place if short else k for place in range(accepted + 1)]
    return DraftTrace(
        by_position(np.array(stands[:starts]), k),
        np.array(offered[:starts], dtype=np.int64),
    )
