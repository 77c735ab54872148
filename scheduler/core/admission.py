"""Admission, the authority on what may enter: every request passes here, whatever a frontend has checked before."""

import math

import msgspec
import numpy as np

from quire.proto.messages.message import EngineState
from quire.proto.messages.params import (
    INT64_MAX,
    MAX_CACHE_SALT,
    MAX_N,
    ParameterError,
    SamplingParams,
    check_token_ids,
)
from quire.proto.messages.requests import ModelFacts, Submit
from quire.proto.transport.wire import Int32, WireError, unpack
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.state.waiting import Waiting

MIN_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0

VECTOR = SamplingParams(temperature=0.0, max_tokens=1)
"""Parameters of a prompt whose answer is a vector: it ends when its last token has run, as if it sampled one."""


class Refusal(Exception):
    """A request is not taken: a reason of `proto.messages.errors`, the field on the wire, and text for a person."""

    def __init__(self, reason: str, field: str, message: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.reason = reason
        self.field = field
        self.message = message
        self.retry_after_seconds = retry_after_seconds


def check_state(state: EngineState, accepted: bool) -> None:
    """Raises `Refusal` in a state that takes no request. A drain still takes what was `accepted` before."""
    if state == "starting":
        raise Refusal("STARTING", "", "the engine is still loading the model; try again", MIN_RETRY_SECONDS)
    if state == "draining" and not accepted:
        raise Refusal("DRAINING", "", "the engine is shutting down; send the request to another", MIN_RETRY_SECONDS)
    if state == "failed":
        raise Refusal("FAILED", "", "the engine has failed and will not recover by itself")


def check_queue(waiting: Waiting, num_prompt: int, config: SchedulerConfig) -> None:
    """Raises `Refusal` (QUEUE_FULL). An empty queue takes any prompt."""
    retry = min(max(waiting.typical_seconds, MIN_RETRY_SECONDS), MAX_RETRY_SECONDS)
    if waiting.num_requests >= config.max_num_queued_reqs:
        message = f"{waiting.num_requests} requests wait, at most {config.max_num_queued_reqs} may"
        raise Refusal("QUEUE_FULL", "", f"{message}; try again in {retry:.0f} s", retry)
    if waiting.num_tokens and waiting.num_tokens + num_prompt > config.max_num_queued_tokens:
        message = f"{waiting.num_tokens} prompt tokens wait, with these {num_prompt} they would be more than "
        raise Refusal("QUEUE_FULL", "", f"{message}{config.max_num_queued_tokens}; try again in {retry:.0f} s", retry)


def fit_task(submit: Submit, facts: ModelFacts) -> Submit:
    """The request as the model's task runs it. Raises `Refusal` (UNSUPPORTED) when the request is for another task."""
    if submit.task == facts.task and facts.makes_vectors:
        if submit.n > 1:
            raise _invalid("n", f"must be 1: a prompt has one vector, got {submit.n}")
        return msgspec.structs.replace(submit, params=VECTOR, resumed=())
    if submit.task == facts.task:
        return submit
    if submit.task == "generate" and facts.task == "embed":
        message = f"{facts.architecture} makes vectors here and generates nothing; ask it for embeddings, or send this "
        raise Refusal("UNSUPPORTED", "", f"{message}to an engine that serves a generating model")
    message = f"{facts.architecture} serves the task {facts.task} here; send this to an engine with a model for it"
    raise Refusal("UNSUPPORTED", "", f"{message}, or one started with --task {submit.task}")


def check_form(submit: Submit, config: SchedulerConfig) -> None:
    """Check everything that needs no model. Raises `Refusal`."""
    if not 0 <= submit.number <= INT64_MAX:
        raise _invalid("number", f"must be in [0, {INT64_MAX}], got {submit.number}")
    if not 1 <= submit.n <= MAX_N:
        raise _invalid("n", f"must be in [1, {MAX_N}], got {submit.n}")
    if submit.n > 1 and submit.params.greedy:
        raise _invalid("n", f"must be 1 when temperature is 0 (all outputs would be equal), got {submit.n}")
    if submit.priority and config.scheduling_policy == "fcfs":
        raise _invalid(
            "priority", f"is {submit.priority}, but the scheduling policy is fcfs; leave it 0 or start with priority"
        )
    if not math.isfinite(submit.timeout_seconds) or submit.timeout_seconds > config.max_timeout_seconds:
        raise _invalid(
            "timeout_seconds", f"must be in (0, {config.max_timeout_seconds:g}], got {submit.timeout_seconds:g}"
        )
    if len(submit.cache_salt) > MAX_CACHE_SALT:
        raise _invalid("cache_salt", f"has {len(submit.cache_salt)} characters, at most {MAX_CACHE_SALT} are allowed")


def read_prompt(submit: Submit) -> Int32:
    """The prompt's token ids. Raises `Refusal` when there are none."""
    prompt = _tokens("prompt_token_ids", submit.prompt)
    if not len(prompt):
        raise Refusal("EMPTY_PROMPT", "prompt_token_ids", "is empty; give at least one token")
    if not 0 <= submit.second_text < len(prompt):
        raise _invalid("second_text", f"must be in [0, {len(prompt)}), got {submit.second_text}")
    return prompt


def check_model(
    prompt: Int32, params: SamplingParams, adapter: str, facts: ModelFacts, config: SchedulerConfig
) -> None:
    """Check that the model and its memory can take the request. Raises `Refusal`."""
    if adapter and adapter not in facts.adapters:
        known = ", ".join(facts.adapters) or "none"
        raise Refusal("UNKNOWN_ADAPTER", "adapter", f"{adapter!r} is not loaded; loaded are: {known}")
    if facts.makes_vectors:
        _check_embedded(len(prompt), facts, config.max_num_batched_tokens)
    else:
        _check_generated(len(prompt), params.max_tokens, facts)
    in_range = int(prompt.min()) >= 0 and int(prompt.max()) < facts.vocab_size
    try:
        check_token_ids(params, () if in_range else prompt.tolist(), facts.vocab_size)
    except ParameterError as error:
        raise Refusal(error.reason, error.field, str(error)) from error


def _check_generated(num_prompt: int, max_tokens: int, facts: ModelFacts) -> None:
    longest = num_prompt + max_tokens
    if longest > facts.max_model_len:
        message = f"{num_prompt} prompt tokens and max_tokens {max_tokens} are {longest}, more than the context "
        message += f"length {facts.max_model_len}; shorten the prompt or lower max_tokens"
        raise Refusal("CONTEXT_LENGTH_EXCEEDED", "max_tokens", message)
    # The last token is sampled but never run, so it needs no cell.
    needed = facts.blocks_for(longest - 1)
    if needed > facts.num_blocks:
        message = f"{longest} tokens need {needed} KV blocks of {facts.block_size}, the engine has {facts.num_blocks}; "
        raise Refusal("EXCEEDS_CAPACITY", "max_tokens", f"{message}shorten the prompt or lower max_tokens")


def _check_embedded(num_prompt: int, facts: ModelFacts, most_step_tokens: int) -> None:
    """Check a prompt whose answer is a vector. Nothing is sampled, so it may fill the context."""
    if num_prompt > facts.max_model_len:
        message = (
            f"{num_prompt} tokens are more than the context length {facts.max_model_len}; shorten the text or set "
        )
        raise Refusal("CONTEXT_LENGTH_EXCEEDED", "prompt_token_ids", f"{message}truncate_prompt_tokens")
    if facts.whole_prompts and num_prompt > most_step_tokens:
        message = (
            f"{num_prompt} tokens are more than one step takes, {most_step_tokens}, and this model reads a prompt "
        )
        message += "in one step; shorten the text, or start the engine with a larger max_num_batched_tokens"
        raise Refusal("EXCEEDS_CAPACITY", "prompt_token_ids", message)
    needed = facts.blocks_for(num_prompt)
    if facts.num_blocks < needed:
        message = (
            f"{num_prompt} tokens need {needed} KV blocks of {facts.block_size}, the engine has {facts.num_blocks}"
        )
        raise Refusal("EXCEEDS_CAPACITY", "prompt_token_ids", f"{message}; shorten the text")


def read_resumed(submit: Submit, facts: ModelFacts) -> list[Int32]:
    """Tokens already emitted, one array per output. Raises `Refusal`."""
    if any(not 0 <= index < submit.n for index in submit.finished_outputs):
        raise _invalid("finished_outputs", f"must be in [0, {submit.n}), got {list(submit.finished_outputs)}")
    if not submit.resumed:
        return [np.zeros(0, np.int32)] * submit.n
    if len(submit.resumed) != submit.n:
        raise _invalid("resumed", f"must be empty or one per output ({submit.n}), got {len(submit.resumed)}")
    resumed = [_tokens("resumed", column) for column in submit.resumed]
    for index, tokens in enumerate(resumed):
        if len(tokens) > submit.params.max_tokens:
            most = submit.params.max_tokens
            raise _invalid("resumed", f"output {index} has {len(tokens)} tokens, more than max_tokens {most}")
        if len(tokens) and not (int(tokens.min()) >= 0 and int(tokens.max()) < facts.vocab_size):
            raise Refusal(
                "TOKEN_OUT_OF_RANGE", "resumed", f"output {index} has a token id outside [0, {facts.vocab_size})"
            )
    return resumed


def _tokens(field: str, column: bytes) -> Int32:
    try:
        return unpack(column)
    except WireError as error:
        raise _invalid(field, str(error)) from error


def _invalid(field: str, message: str) -> Refusal:
    return Refusal("INVALID_PARAMETER", field, message)
