"""Sampling parameters of one request, checked on construction.

Ranges follow the OpenAI API and its common extensions. Every rejection is a `ParameterError` that names the
field, the value and the remedy, so that each door can translate it without parsing text.
"""

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

MAX_N = 64
MAX_LOGPROBS = 20
MAX_LOGPROB_TOKEN_IDS = 128
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 256
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 128
MAX_BAD_WORD_TOKENS = 64
MAX_ALLOWED_TOKEN_IDS = 65_536
MAX_CACHE_SALT = 128
MAX_STRUCTURED_BYTES = 64 << 10
MAX_CHANNELS_BYTES = 4 * MAX_STRUCTURED_BYTES
"""That of an answer in channels, whose text holds another, escaped."""
INT64_MAX = 2**63 - 1
MOST_SHOWN = 64
"""Characters of a wrong value that an error repeats: a number of JSON may have thousands of digits."""

StructuredKind = Literal["json_object", "json_schema", "regex", "choice", "grammar", "structural_tag", "channels"]

FinishReason = Literal["stop", "length", "abort", "deadline", "rejected", "error"]
"""Reason for an output's end. Exactly one per output, and nothing after it."""


class ParameterError(ValueError):
    """A request field the user must change. `field` is its wire name, `reason` a word of `proto/messages/errors.py`."""

    def __init__(self, field: str, message: str, reason: str = "INVALID_PARAMETER") -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.reason = reason


class Structured(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The language an output must belong to. `text` is a JSON Schema, a regular expression, a JSON list of strings
    (`choice`), an EBNF grammar or a structural tag (JSON); empty for `json_object`. `channels` no client can say: it
    is what the frontend makes of another for gpt-oss (`proto/messages/channels.py`).
    """

    kind: StructuredKind
    text: str = ""
    after: str = ""
    """End marker of free text that comes first (of a reasoning section); empty: there is none."""
    thoughts: tuple[tuple[str, str], ...] = ()
    """Pairs of markers: free text between the opening and the closing one may come first, or nothing. With `after` that
    text must come, and an opening one may come before it."""

    def __post_init__(self) -> None:
        size = len(self.text.encode(errors="surrogatepass"))
        most = MAX_CHANNELS_BYTES if self.kind == "channels" else MAX_STRUCTURED_BYTES
        if size > most:
            raise ParameterError(
                "structured",
                f"{self.kind} has {size} bytes; at most {most} are allowed",
                "INVALID_GRAMMAR",
            )


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """Rules by which the next token is chosen and an output ends.

    `temperature == 0` is greedy. `seed` is always set when a request reaches the scheduler: a token's random
    number is a function of (seed, output index, position), never of a generator's state.
    Stop strings are not here: they need text, so the frontend owns them.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps every token."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Pairs (token id, addend in [-100, 100])."""
    allowed_token_ids: tuple[int, ...] = ()
    """Empty: all are allowed."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences whose last token is forbidden after the others."""
    logprobs: int = -1
    """-1: none; otherwise the chosen token's and this many of the likeliest."""
    logprob_token_ids: tuple[int, ...] = ()
    """Tokens whose logprobs are reported too, wherever logprobs or prompt logprobs are reported."""
    prompt_logprobs: int = -1
    structured: Structured | None = None
    """None: any text."""

    def __post_init__(self) -> None:
        _float("temperature", self.temperature, 0.0, 2.0)
        _float("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _int("top_k", self.top_k, 0, INT64_MAX)
        _float("min_p", self.min_p, 0.0, 1.0)
        _float("repetition_penalty", self.repetition_penalty, 0.0, 100.0, open_low=True)
        _float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _int("seed", self.seed, -INT64_MAX - 1, INT64_MAX)
        _int("max_tokens", self.max_tokens, 1, INT64_MAX)
        _int("min_tokens", self.min_tokens, 0, self.max_tokens)
        _int("logprobs", self.logprobs, -1, MAX_LOGPROBS)
        _int("prompt_logprobs", self.prompt_logprobs, -1, MAX_LOGPROBS)
        _count("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS)
        _count("logit_bias", self.logit_bias, MAX_LOGIT_BIAS)
        _count("allowed_token_ids", self.allowed_token_ids, MAX_ALLOWED_TOKEN_IDS)
        _count("bad_words", self.bad_words, MAX_BAD_WORDS)
        _count("logprob_token_ids", self.logprob_token_ids, MAX_LOGPROB_TOKEN_IDS)
        for _, bias in self.logit_bias:
            _float("logit_bias", bias, -100.0, 100.0)
        for word in self.bad_words:
            if not 1 <= len(word) <= MAX_BAD_WORD_TOKENS:
                raise ParameterError(
                    "bad_words", f"each word must be 1 to {MAX_BAD_WORD_TOKENS} tokens, got {len(word)}"
                )
        if self.structured is not None and (self.ignore_eos or self.min_tokens):
            field = "ignore_eos" if self.ignore_eos else "min_tokens"
            raise ParameterError(field, "excludes structured output, which ends where its grammar ends; leave it unset")
        if self.logprob_token_ids and self.logprobs < 0 and self.prompt_logprobs < 0:
            raise ParameterError("logprob_token_ids", "needs logprobs or prompt_logprobs; set one of them to 0 or more")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def read_top_k(value: object) -> int:
    """The `top_k` that a request, a deployment or a model's files mean: -1 keeps all tokens, as 0 does, and 20.0 is 20.

    Raises `ParameterError`.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    top_k = 0 if value == -1 else value
    _int("top_k", top_k, 0, INT64_MAX)
    assert isinstance(top_k, int)
    return top_k


def check_token_ids(params: SamplingParams, prompt: Sequence[int], vocab_size: int) -> None:
    """Raise `ParameterError` for any token id outside [0, vocab_size), the width of the logits."""
    named = (
        ("prompt_token_ids", prompt),
        ("stop_token_ids", params.stop_token_ids),
        ("allowed_token_ids", params.allowed_token_ids),
        ("logprob_token_ids", params.logprob_token_ids),
        ("logit_bias", [token for token, _ in params.logit_bias]),
        ("bad_words", [token for word in params.bad_words for token in word]),
    )
    for field, ids in named:
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            index, bad = next((i, t) for i, t in enumerate(ids) if not 0 <= t < vocab_size)
            raise ParameterError(
                field,
                f"token id {bad!r:.{MOST_SHOWN}} at index {index} is outside [0, {vocab_size})",
                "TOKEN_OUT_OF_RANGE",
            )


def _float(field: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    finite = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not finite or value > high or value < low or (open_low and value == low):
        bracket = "(" if open_low else "["
        raise ParameterError(
            field, f"must be a finite number in {bracket}{low:g}, {high:g}], got {value!r:.{MOST_SHOWN}}"
        )


def _int(field: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ParameterError(field, f"must be an integer in [{low}, {high}], got {value!r:.{MOST_SHOWN}}")


def _count(field: str, values: Sequence[object], most: int) -> None:
    if len(values) > most:
        raise ParameterError(field, f"has {len(values)} entries; at most {most} are allowed")
