"""Sampling and label fields of a JSON request: OpenAI's names, and the extensions vLLM's clients send at top level.

A field of type None is known and not offered: null passes, anything else is refused by its name. What changes nothing
here (`user`, `metadata`, ...) is accepted.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from quire.frontend.errors import not_supported
from quire.frontend.http.fields.structured import StructuredFields
from quire.proto.api import Chat, GenerateRequest
from quire.proto.messages.params import ParameterError

SAME = (
    "model",
    "adapter",
    "truncate_prompt_tokens",
    "truncation_side",
    "priority",
    "cache_salt",
    "timeout_seconds",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "n",
    "best_of",
    "max_tokens",
    "min_tokens",
    "ignore_eos",
    "prompt_logprobs",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "add_special_tokens",
    "parse_special",
)
"""Fields that mean the same as in `api.GenerateRequest`."""
ALIASES = {"repeat_penalty": "repetition_penalty", "n_predict": "max_tokens", "num_predict": "max_tokens"}
"""The names that llama-server and Ollama have for a field -> the field."""
NEVER = -100.0
"""The least bias."""
TOKEN_ID = re.compile(r"-?[0-9]{1,19}")
LISTS = ("stop_token_ids", "allowed_token_ids", "bad_words", "logprob_token_ids")


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The options for a `usage` block: in one last chunk, or in every chunk, and the engine's times in the last."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_timings: bool | None = None
    """An answer that is no stream takes it, too."""
    include_obfuscation: bool | None = None
    """Padding against traffic analysis; none is ever added."""


class SamplingFields(StructuredFields, kw_only=True, forbid_unknown_fields=True):
    model: str | None = None
    adapter: str | None = None
    request_id: str | None = None
    """Default: the `x-request-id` header, or a new one."""
    priority: int | None = None
    cache_salt: str | None = None
    timeout_seconds: float | None = None

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    n: int | None = None
    best_of: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    repeat_penalty: float | None = None
    n_predict: int | None = None
    num_predict: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[str, float] | list[tuple[int | str, float | bool]] | None = None
    """By token id; as pairs, as llama-server has it, where false means never."""
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None

    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    add_special_tokens: bool | None = None
    parse_special: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    """Logprobs show a token as `token_id:N` in place of its text."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None

    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    spaces_between_special_tokens: bool | None = None

    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | None = None
    logits_processors: None = None
    kv_transfer_params: None = None
    vllm_xargs: None = None
    prompt_embeds: None = None
    repetition_detection: None = None
    thinking_token_budget: None = None

    def generate_request(self, input: str | Sequence[int] | Chat | None, **overrides: Any) -> GenerateRequest:
        """The request these fields mean. Raises `ParameterError`."""
        self._refuse_what_would_be_ignored()
        self.take_aliases()
        fields: dict[str, Any] = {name: getattr(self, name) for name in SAME}
        fields |= {name: tuple(value) for name in LISTS if (value := getattr(self, name))}
        if self.stop is not None:
            fields["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if self.logit_bias:
            fields["logit_bias"] = _by_token(self.logit_bias)
        # a format shapes the text of an answer, and a forced call comes without any
        forced = isinstance(input, Chat) and input.tool_choice not in (None, "auto", "none")
        shaping = msgspec.structs.replace(self, response_format=None) if forced else self
        fields["structured"] = shaping.structured()
        fields["return_token_ids"] = bool(self.return_token_ids)
        fields["return_prompt_token_ids"] = bool(self.return_token_ids)
        if self.stream and self.best_of is not None and self.best_of != (self.n or 1):
            raise ParameterError("best_of", "cannot stream: which outputs are best is known at their end; unset stream")
        return GenerateRequest(input=input, **(fields | overrides))

    def take_aliases(self) -> None:
        """Set the fields whose other names were given. Raises `ParameterError` where two names differ."""
        for alias, field in ALIASES.items():
            value, old = getattr(self, alias), getattr(self, field)
            if value is not None:
                if old is not None and old != value:
                    raise ParameterError(alias, f"is {value!r:.64}, but {field} is {old!r:.64}; set only one of them")
                setattr(self, field, value)

    def names(self) -> dict[str, str]:
        """The pipeline's names of fields -> this request's names; see `renamed`."""
        return super().names() | {field: alias for alias, field in ALIASES.items() if getattr(self, alias) is not None}

    def _refuse_what_would_be_ignored(self) -> None:
        if self.stream_options is not None and not (self.stream or self.include_timings):
            raise ParameterError("stream_options", "needs stream; set stream to true or remove it")
        refused: list[tuple[str, object]] = [
            ("use_beam_search", self.use_beam_search),
            ("early_stopping", self.early_stopping),
            ("length_penalty", self.length_penalty not in (None, 1.0)),
            ("store", self.store),
            ("spaces_between_special_tokens", self.spaces_between_special_tokens is False),
        ]
        for field, is_set in refused:
            if is_set:
                raise not_supported(field)

    @property
    def include_timings(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_timings)

    @property
    def usage_at_end(self) -> bool:
        asked = self.stream_options is not None and bool(self.stream_options.include_usage)
        return asked or self.include_timings

    @property
    def usage_always(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)


def _by_token(bias: dict[str, float] | list[tuple[int | str, float | bool]]) -> dict[int, float]:
    if isinstance(bias, list):
        bias = {str(key): NEVER if value is False else float(value) for key, value in bias}
    wrong = [key for key in bias if not TOKEN_ID.fullmatch(key)]
    if wrong:
        shown = ", ".join(repr(key[:32]) for key in wrong[:8])
        raise ParameterError("logit_bias", f'{shown}: no token id; use those that /tokenize gives, as "123"')
    return {int(key): value for key, value in bias.items()}
