"""The checks of a request: `before_tokenizing` those that need no tokens, `after_tokenizing` the rest.

Errors name the field as `quire.proto` does. The scheduler checks again.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from quire.frontend.call import Call
from quire.frontend.config import FrontendConfig
from quire.frontend.errors import SHOWN_NAME, engine_starting, too_many_entries
from quire.frontend.request.defaults import FIELDS, Defaults
from quire.frontend.request.token_range import is_within
from quire.proto.api import Chat, GenerateRequest, RequestError
from quire.proto.messages.message import Task
from quire.proto.messages.params import (
    MAX_CACHE_SALT,
    MAX_LOGPROBS,
    MAX_N,
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    ParameterError,
    SamplingParams,
    check_token_ids,
    read_top_k,
)
from quire.proto.messages.requests import Limits, ModelFacts, Welcome

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
SIDES = ("left", "right")
DEFAULT_MAX_TOKENS = 16
"""`max_tokens` of a request that is no chat and sets none."""

DOES: Final[Mapping[Task, str]] = {
    "generate": "generates here; ask it through /v1/chat/completions or /v1/completions",
    "embed": "makes vectors here and generates nothing; ask it through /v1/embeddings, /v1/score or /v1/rerank",
    "score": "scores pairs of texts here; ask it through /v1/score or /v1/rerank",
    "classify": "classifies here; ask it through /classify or /pooling",
    "reward": "gives rewards here; ask it through /classify or /pooling",
}
"""The work of a model of each task, and its routes."""
DOES_BY_TOKEN: Final = "labels each token here; ask it through /pooling"


class CheckedFields(NamedTuple):
    """The values of a request that its checks find."""

    adapter: str
    """Empty: none."""
    budget_seconds: float
    """Time the request may take."""
    num_drawn: int
    """Number of outputs to draw."""
    num_best: int
    """Number of these that are answered, the likeliest ones; 0: all are."""
    grammar_field: str
    """Field that errors of the grammar name."""


def served(welcome: Welcome | None) -> tuple[Limits, ModelFacts]:
    """The scheduler's limits and the model's facts. Raises `RequestError` (STARTING) before they are known."""
    if welcome is None or welcome.facts is None:
        raise engine_starting()
    return welcome.limits, welcome.facts


def before_tokenizing(
    request: GenerateRequest, call: Call, config: FrontendConfig, limits: Limits, facts: ModelFacts
) -> CheckedFields:
    """Check what is neither the model's name, the chat nor sampling. Raises `ParameterError` or `RequestError`."""
    check_task(("generate",), facts)
    check_labels(request, limits)
    check_stop(request.stop)
    n = 1 if request.n is None else request.n
    num_drawn = n if request.best_of is None else request.best_of
    if num_drawn > n and call.streams:
        raise ParameterError("best_of", "is for whole answers; leave it unset in a stream", "UNSUPPORTED")
    return CheckedFields(
        budget_seconds=budget_seconds(request.timeout_seconds, call.deadline_seconds, config, limits),
        adapter=check_adapter(request.adapter, facts),
        num_drawn=num_drawn,
        num_best=n if num_drawn > n else 0,
        grammar_field="chat.tools" if request.structured is None else "structured",
    )


def after_tokenizing(
    request: GenerateRequest,
    defaults: Defaults,
    seed: int,
    prompt: Sequence[int],
    bad_words: tuple[tuple[int, ...], ...],
    facts: ModelFacts,
) -> SamplingParams:
    """Check what needs the prompt's tokens; the parameters. Raises `ParameterError`."""
    room = check_length(len(prompt), request.max_tokens, facts)
    max_tokens = default_max_tokens(request, defaults, len(prompt), room, facts)
    params = sampling_params(request, defaults, seed, max_tokens, bad_words)
    check_token_ids(params, () if is_within(prompt, facts.vocab_size) else prompt, facts.vocab_size)
    return params


def check_task(tasks: Sequence[Task], facts: ModelFacts) -> None:
    """Raises `RequestError` (UNSUPPORTED) unless the task of the model served here is one of these."""
    if facts.task in tasks:
        return
    remedy = f"or serve a model for this, with --task {tasks[0]} where its files do not say so"
    does = DOES_BY_TOKEN if facts.by_token else DOES[facts.task]
    raise RequestError("UNSUPPORTED", f"{facts.architecture} {does}, {remedy}", field="model")


def check_adapter(name: str | None, facts: ModelFacts) -> str:
    """The adapter that is meant; empty for none. Raises `RequestError` (NOT_FOUND)."""
    if name and name not in facts.adapters:
        raise RequestError("UNKNOWN_ADAPTER", f"adapter {name[:SHOWN_NAME]!r} is not loaded", field="adapter")
    return name or ""


def check_labels(request: GenerateRequest, limits: Limits) -> None:
    """Check the fields that are about neither prompt, time nor sampling. Raises `ParameterError`."""
    if request.request_id is not None:
        check_request_id(request.request_id)
    if request.cache_salt is not None and not 1 <= len(request.cache_salt) <= MAX_CACHE_SALT:
        message = f"must be 1 to {MAX_CACHE_SALT} characters; leave it unset to share prefixes with all"
        raise ParameterError("cache_salt", message)
    if request.priority and not limits.priority_enabled:
        raise ParameterError("priority", "needs a server with the priority policy; leave it unset", "UNSUPPORTED")
    if request.priority is not None and not -(2**63) <= request.priority < 2**63:
        raise ParameterError("priority", f"must be a 64-bit integer, got {request.priority}")
    if request.n is not None and not 1 <= request.n <= MAX_N:
        raise ParameterError("n", f"must be an integer in [1, {MAX_N}], got {request.n}")
    if request.best_of is not None and not (request.n or 1) <= request.best_of <= MAX_N:
        raise ParameterError("best_of", f"must be an integer in [n, {MAX_N}], got {request.best_of}")
    check_truncation(request)
    check_for_text(request.input, request.add_special_tokens, request.parse_special)


def check_request_id(label: str, field: str = "request_id") -> None:
    """Check an id that logs, terminals and headers repeat. Raises `ParameterError`."""
    if not REQUEST_ID.fullmatch(label):
        shown = f"{label[:SHOWN_NAME]!r}" if label else "an empty one"
        raise ParameterError(field, f"must be 1 to 128 visible ASCII characters, without blanks; got {shown}")


def check_truncation(request: GenerateRequest) -> None:
    """Check how a prompt is cut, and what excludes it. Raises `ParameterError`."""
    keep, side = request.truncate_prompt_tokens, request.truncation_side
    if keep is not None and keep < 1 and keep != -1:
        raise ParameterError("truncate_prompt_tokens", f"must be at least 1, or -1 for what fits, got {keep}")
    if side is not None and side not in SIDES:
        raise ParameterError("truncation_side", f"must be 'left' or 'right', got {side[:SHOWN_NAME]!r}")
    if keep is not None and request.suffix is not None and isinstance(request.input, str):
        raise ParameterError("truncate_prompt_tokens", "excludes suffix: what is cut would be no form to fill in")
    if keep is not None and isinstance(request.input, Chat) and any(one.media for one in request.input.messages):
        message = "cuts no prompt with images or videos; leave it unset, and send fewer turns or pictures"
        raise ParameterError("truncate_prompt_tokens", message, "UNSUPPORTED")
    if request.suffix and not isinstance(request.input, str):
        raise ParameterError("suffix", "applies to a text prompt only; leave it unset", "UNSUPPORTED")


def num_kept(request: GenerateRequest, defaults: Defaults, facts: ModelFacts) -> int | None:
    """The number of the prompt's tokens to keep; None: all of them."""
    if request.truncate_prompt_tokens != -1:
        return request.truncate_prompt_tokens
    wanted = request.max_tokens or defaults.max_tokens or DEFAULT_MAX_TOKENS
    return max(1, facts.max_model_len - wanted)


def check_for_text(source: object, add_special_tokens: bool | None, parse_special: bool | None) -> None:
    """Check that fields about a text come with one. Raises `ParameterError`."""
    given = {"add_special_tokens": add_special_tokens, "parse_special": parse_special}
    field = next((name for name, value in given.items() if value is not None), None)
    if field is not None and not isinstance(source, str):
        raise ParameterError(field, "applies to a text prompt only; leave it unset")


def check_stop(stop: Sequence[str]) -> None:
    """Check the number and the lengths of the stop strings. Raises `ParameterError`."""
    if len(stop) > MAX_STOP_STRINGS:
        raise too_many_entries("stop", len(stop), MAX_STOP_STRINGS)
    for index, text in enumerate(stop):
        if not 1 <= len(text) <= MAX_STOP_LENGTH:
            raise ParameterError(
                "stop", f"entry {index} has {len(text)} characters; 1 to {MAX_STOP_LENGTH} are allowed"
            )


def budget_seconds(field: float | None, deadline: float | None, config: FrontendConfig, limits: Limits | None) -> float:
    """The time the request may take: the least of its own field, the call's deadline, and default or cap.

    Raises `ParameterError` for a field outside (0, cap], `RequestError` (DEADLINE) for a deadline already past.
    """
    cap = config.max_timeout_seconds if limits is None else min(config.max_timeout_seconds, limits.max_timeout_seconds)
    if field is not None and not (math.isfinite(field) and 0 < field <= cap):
        raise ParameterError("timeout_seconds", f"must be a finite number in (0, {cap:g}], got {field!r:.64}")
    if deadline is not None and deadline <= 0:
        raise RequestError("DEADLINE", "the call's deadline had passed when it arrived")
    named = [seconds for seconds in (field, deadline) if seconds is not None]
    return min([*named, cap]) if named else min(config.default_timeout_seconds, cap)


def sampling_params(
    request: GenerateRequest, defaults: Defaults, seed: int, max_tokens: int, bad_words: tuple[tuple[int, ...], ...]
) -> SamplingParams:
    """The sampling parameters; `seed` and `max_tokens` are for a request that has none. Raises `ParameterError`."""
    chosen = {field: getattr(request, field) for field in FIELDS}
    if chosen["top_k"] is not None:
        chosen["top_k"] = read_top_k(chosen["top_k"])
    values = {field: getattr(defaults, field) if value is None else value for field, value in chosen.items()}
    params = SamplingParams(
        **values,
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        seed=seed if request.seed is None else request.seed,
        max_tokens=max_tokens if request.max_tokens is None else request.max_tokens,
        min_tokens=request.min_tokens or 0,
        stop_token_ids=tuple(request.stop_token_ids),
        ignore_eos=bool(request.ignore_eos),
        logit_bias=tuple(sorted(request.logit_bias.items())),
        allowed_token_ids=tuple(request.allowed_token_ids),
        bad_words=bad_words,
        logprobs=_count(request.logprobs, "logprobs"),
        logprob_token_ids=tuple(request.logprob_token_ids),
        prompt_logprobs=_count(request.prompt_logprobs, "prompt_logprobs"),
        structured=request.structured,
    )
    for field, count in (("n", request.n), ("best_of", request.best_of)):
        if count is not None and count > 1 and params.greedy:
            raise ParameterError(field, f"must be 1 when temperature is 0: all outputs would be equal; got {count}")
    return params


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _count(value: int | None, field: str) -> int:
    if value is not None and not 0 <= value <= MAX_LOGPROBS:
        raise ParameterError(field, f"must be an integer in [0, {MAX_LOGPROBS}], or unset for none; got {value}")
    return -1 if value is None else value


def default_max_tokens(
    request: GenerateRequest, defaults: Defaults, num_prompt: int, room: int, facts: ModelFacts
) -> int:
    """The `max_tokens` of a request that sets none: the deployment's, as far as there is room for it.

    Where it says nothing: for a chat the rest of the context, or of the cache if smaller.
    """
    most = _most_tokens(num_prompt, room, facts)
    if defaults.max_tokens is not None:
        return min(defaults.max_tokens, most)
    return most if isinstance(request.input, Chat) else min(DEFAULT_MAX_TOKENS, room)


def within_room(request: GenerateRequest, defaults: Defaults, num_prompt: int, facts: ModelFacts) -> GenerateRequest:
    """The request with its `max_tokens`, or the deployment's, cut to what a prompt of so many tokens leaves.

    Raises `ParameterError` when that is nothing.
    """
    most = _most_tokens(num_prompt, check_length(num_prompt, None, facts), facts)
    wanted = defaults.max_tokens if request.max_tokens is None else request.max_tokens
    return replace(request, max_tokens=most if wanted is None else min(wanted, most))


def _most_tokens(num_prompt: int, room: int, facts: ModelFacts) -> int:
    return max(1, min(room, facts.num_kv_tokens - num_prompt))


def check_length(num_prompt: int, max_tokens: int | None, facts: ModelFacts) -> int:
    """The number of tokens left for output. Raises `ParameterError` naming both numbers and the limit."""
    wanted = 1 if max_tokens is None else max_tokens
    if num_prompt + wanted > facts.max_model_len:
        raise ParameterError(
            "max_tokens",
            f"{num_prompt} prompt tokens and {wanted} output tokens exceed the context of {facts.max_model_len}; "
            "shorten the prompt or lower max_tokens",
            "CONTEXT_LENGTH_EXCEEDED",
        )
    return facts.max_model_len - num_prompt
