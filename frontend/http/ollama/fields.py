"""The fields that requests of `/api/chat` and `/api/generate` share, and what they mean to the pipeline."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec

from quire.frontend.context import FrontendContext
from quire.frontend.errors import not_supported
from quire.frontend.http.decoding import ignored
from quire.frontend.http.fields.conversation import json_text, template_kwargs
from quire.frontend.http.ollama.answer import served_name
from quire.proto.api import Chat, GenerateRequest
from quire.proto.messages.params import ParameterError, Structured

SAME = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty")
"""Options that mean the same as in `api.GenerateRequest`."""
FIXED = (
    "num_ctx",
    "num_keep",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "numa",
    "low_vram",
    "f16_kv",
    "logits_all",
    "vocab_only",
    "use_mmap",
    "use_mlock",
    "embedding_only",
    "repeat_last_n",
    "penalize_newline",
    "mirostat_tau",
    "mirostat_eta",
)
"""Options that change nothing here: a server's start has decided them, or there is one way only."""
NEUTRAL: dict[str, tuple[float, ...]] = {"mirostat": (0,), "tfs_z": (0, 1), "typical_p": (0, 1)}
"""Samplers that are not offered -> the values that ask for none."""
MOST_TOKENS = (1 << 31) - 1
"""Tokens of a `num_predict` of 0 or less, which are then cut to the room there is."""
NAMES = {
    "chat$": "messages",
    r"chat\.messages(\[\d+\])\.content_parts": r"messages\1.images",
    r"chat\.tools(\[\d+\])": r"tools\1.function",
    "structured": "format",
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "logprobs": "top_logprobs",
    **{name: f"options.{name}" for name in (*SAME, "top_k", "seed", "stop")},
}
"""The pipeline's names of fields -> those of a chat."""
ZERO = re.compile(rb'"?0+(\.0*)?[a-z]*"?')
MAX_TIME = 64
"""Bytes of a time that is looked at; nobody writes a longer one."""


class Options(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    temperature: float | None = None
    top_k: int | float | None = None
    """0 and less: all tokens."""
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    """-1: a new one."""
    stop: str | list[str] | None = None
    num_predict: int | None = None
    """0 and less: as many as there is room for."""

    num_ctx: msgspec.Raw = msgspec.Raw()
    num_keep: msgspec.Raw = msgspec.Raw()
    num_batch: msgspec.Raw = msgspec.Raw()
    num_gpu: msgspec.Raw = msgspec.Raw()
    main_gpu: msgspec.Raw = msgspec.Raw()
    num_thread: msgspec.Raw = msgspec.Raw()
    numa: msgspec.Raw = msgspec.Raw()
    low_vram: msgspec.Raw = msgspec.Raw()
    f16_kv: msgspec.Raw = msgspec.Raw()
    logits_all: msgspec.Raw = msgspec.Raw()
    vocab_only: msgspec.Raw = msgspec.Raw()
    use_mmap: msgspec.Raw = msgspec.Raw()
    use_mlock: msgspec.Raw = msgspec.Raw()
    embedding_only: msgspec.Raw = msgspec.Raw()
    repeat_last_n: msgspec.Raw = msgspec.Raw()
    penalize_newline: msgspec.Raw = msgspec.Raw()
    mirostat_tau: msgspec.Raw = msgspec.Raw()
    mirostat_eta: msgspec.Raw = msgspec.Raw()

    mirostat: float | None = None
    tfs_z: float | None = None
    typical_p: float | None = None

    def sampling(self) -> dict[str, Any]:
        """Fields of `api.GenerateRequest`. Raises `ParameterError`."""
        for name, allowed in NEUTRAL.items():
            if getattr(self, name) not in (None, *allowed):
                raise not_supported(f"options.{name}")
        for name in FIXED:
            if bytes(getattr(self, name)) not in (b"", b"null"):
                ignored.note(f"options.{name}")
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        return {name: getattr(self, name) for name in SAME} | {
            "top_k": None if self.top_k is None else max(self.top_k, 0),
            "repetition_penalty": self.repeat_penalty,
            "seed": None if self.seed == -1 else self.seed,
            "stop": tuple(stop or ()),
            "max_tokens": MOST_TOKENS if self.num_predict is not None and self.num_predict <= 0 else self.num_predict,
        }


class Fields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Top-level fields. What is left unset is the deployment's default, not Ollama's."""

    names: ClassVar[Mapping[str, str]] = NAMES
    """The pipeline's names of fields -> this request's; see `renamed`."""

    model: str
    stream: bool | None = None
    """True unless it is said otherwise."""
    format: msgspec.Raw = msgspec.Raw()
    """"json", or a JSON Schema."""
    options: Options | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    keep_alive: msgspec.Raw = msgspec.Raw()
    logprobs: bool | None = None
    top_logprobs: int | None = None
    truncate: bool | None = None
    shift: bool | None = None

    @property
    def streams(self) -> bool:
        return self.stream is not False

    @property
    def unloads(self) -> bool:
        """Its `keep_alive` is no time at all. The model stays: it is everybody's."""
        given = bytes(self.keep_alive)
        return len(given) <= MAX_TIME and ZERO.fullmatch(given) is not None

    def generate_request(self, context: FrontendContext, input: str | Chat, label: str) -> GenerateRequest:
        """The request that these fields mean. Raises `ParameterError` or `RequestError`."""
        for name in ("truncate", "shift"):
            if getattr(self, name):
                ignored.note(name)
        if self.top_logprobs is not None and not self.logprobs:
            raise ParameterError("top_logprobs", "needs logprobs; set logprobs to true or remove it")
        return GenerateRequest(
            input=input,
            request_id=label,
            model=served_name(context, self.model),
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            structured=self._structured(),
            include_reasoning=self.think is not False,
            **(self.options or Options()).sampling(),
        )

    def template_kwargs(self, context: FrontendContext) -> str:
        """The template's variables for `think`, which a model that does not reason is not told."""
        if self.think is None:
            return ""
        if not context.engine_info.server_info().reasoning_parser:
            ignored.note("think")
            return ""
        if isinstance(self.think, bool):
            return template_kwargs({"enable_thinking": self.think})
        return template_kwargs({"enable_thinking": True}, self.think)

    def _structured(self) -> Structured | None:
        text = json_text(self.format)
        if text in ("", '""'):
            return None
        if text == '"json"':
            return Structured("json_object")
        if not text.startswith("{"):
            raise ParameterError("format", 'must be "json" or a JSON Schema', "INVALID_GRAMMAR")
        return Structured("json_schema", text)
