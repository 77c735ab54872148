"""Base and vocabulary of all internal messages."""

from collections.abc import Iterable
from typing import Literal

import msgspec

EngineState = Literal["starting", "ready", "draining", "recovering", "failed"]


PeerRole = Literal["frontend", "supervisor"]


Task = Literal["generate", "embed", "classify", "score", "reward"]
"""All but the first answer a prompt with one vector: an embedding, or the numbers that a head gives its labels."""


AbortReason = Literal["client", "stop_string", "slow_reader"]
"""Why a frontend ends a request: its client left, a stop string matched, or its client does not read."""


class WireMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """Base of every internal message: positional, tagged, closed."""


class Usage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Cost of one output. Seconds are of the scheduler's monotonic clock."""

    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that were there when it first ran: in the prefix cache, or of an output of the same request."""
    completion_tokens: int
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    num_preemptions: int = 0
    num_restarts: int = 0


def cached_of_prompt(usages: Iterable[Usage]) -> int:
    """Tokens of one prompt that were cached before any of its outputs ran: later ones also find those of the first."""
    return min((usage.cached_tokens for usage in usages), default=0)
