"""The verdict that admission must give on a submit, by the contract alone."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.proto.messages.requests import ModelFacts, Submit
from quire.scheduler.config import SchedulerConfig

if TYPE_CHECKING:
    from clients import Request


@dataclass(frozen=True, slots=True)
class Verdict:
    """`may`: reasons it may be rejected with; `must`: it may not be admitted."""

    may: frozenset[str]
    must: bool


def blocks_of(num_tokens: int, facts: ModelFacts) -> int:
    """Blocks of an output of so many tokens: the last one is drawn but never run, so it needs no cell."""
    return facts.blocks_for(num_tokens - 1)


def needed_blocks(request: "Request", facts: ModelFacts) -> int:
    """Blocks that one output of this request may come to need."""
    return blocks_of(len(request.prompt) + request.submit.params.max_tokens, facts)


def verdict(
    submit: Submit,
    prompt: list[int],
    facts: ModelFacts,
    config: SchedulerConfig,
    state: str,
    is_drained: bool,
    live: Iterable["Request"],
) -> Verdict:
    """The verdict on a submit. What was accepted before a scheduler died is refused only where it can never run again:
    the pool has shrunk, the drain is over, the engine has failed.
    """
    params = submit.params
    reasons = set()
    refusing = {"starting": "STARTING", "draining": "DRAINING", "failed": "FAILED"}
    if state in refusing and not (state == "draining" and submit.accepted and not is_drained):
        reasons.add(refusing[state])
    if not prompt:
        reasons.add("EMPTY_PROMPT")
    if any(not 0 <= token < facts.vocab_size for token in (*prompt, *params.stop_token_ids)):
        reasons.add("TOKEN_OUT_OF_RANGE")
    length = len(prompt) + params.max_tokens
    if length > facts.max_model_len:
        reasons.add("CONTEXT_LENGTH_EXCEEDED")
    if submit.adapter and submit.adapter not in facts.adapters:
        reasons.add("UNKNOWN_ADAPTER")
    if (submit.priority and config.scheduling_policy == "fcfs") or (submit.n > 1 and params.greedy):
        reasons.add("INVALID_PARAMETER")
    if blocks_of(length, facts) > facts.num_blocks:
        reasons.add("EXCEEDS_CAPACITY")
    must = bool(reasons)
    queued = list(live)
    tokens = sum(len(request.prompt) for request in queued) + len(prompt)
    is_full = len(queued) >= config.max_num_queued_reqs or tokens > config.max_num_queued_tokens
    if is_full and not submit.accepted:
        reasons.add("QUEUE_FULL")
    return Verdict(frozenset(reasons), must)
