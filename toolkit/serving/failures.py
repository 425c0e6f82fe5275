"""Why a request failed, as a client hears it: one of Triton's codes, and a text.

What matters to a client or a load balancer is what to do next, which the kind of the error says:
ask otherwise (InputError), ask again or elsewhere (CapacityError), or tell somebody (any other).
"""

from __future__ import annotations

import re
from typing import Literal

from toolkit.errors import CapacityError, InputError, RunError, SpectoolError

Code = Literal["INVALID_ARG", "UNAVAILABLE", "CANCELLED", "INTERNAL"]  # pb_utils.TritonError's

_NOT_LOADED = "is not ready"  # Triton, of a model that is unloaded or has not come up yet
# Ours, Triton's and TensorRT-LLM's words for it.
_NO_ROOM = re.compile(r"queue is full|maximum queue size|no KV memory|UNAVAILABLE", re.IGNORECASE)


class CancelledError(SpectoolError):
    """The client has gone, or has taken its request back."""

    def __init__(self) -> None:
        super().__init__("cancelled")


def code_of(error: SpectoolError) -> Code:
    if isinstance(error, InputError):
        return "INVALID_ARG"
    if isinstance(error, CapacityError):
        return "UNAVAILABLE"
    return "CANCELLED" if isinstance(error, CancelledError) else "INTERNAL"


def queue_full(size: int) -> CapacityError:
    return CapacityError(f"the queue is full ({size} requests wait already); try again later")


def stopping() -> CapacityError:
    return CapacityError("the server is stopping")


def unexpected(error: Exception) -> SpectoolError:
    """Ours as they are; a bug or a failing library by the name of its error."""
    if isinstance(error, SpectoolError):
        return error
    return RunError(f"{type(error).__name__}: {error}")


def said_by(model: str, message: str) -> SpectoolError:
    """The error of another model of this server, of which Triton 2.51 passes the text alone."""
    if _NOT_LOADED in message:
        return CapacityError(f"{model}: not loaded now; try again later")
    kind = CapacityError if no_room(message) else RunError
    return kind(f"{model}: {message}")


def no_room(message: str) -> bool:
    """Whether a server refused for want of room, by its words: a stream carries no code."""
    return bool(_NO_ROOM.search(message))
