"""Information about the engine as a whole, and the abort of requests, for both servers: values of `api`."""

import time
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import msgspec

from quire.frontend.config import FrontendConfig
from quire.frontend.request.model_lookup import ModelLookup
from quire.frontend.request.prompt_images import KINDS
from quire.frontend.request.validate import check_request_id, served
from quire.frontend.stream.paced_question import PacedQuestion
from quire.proto import api
from quire.proto.api import RequestError
from quire.proto.messages.introspection import (
    EndedQuery,
    EndedReply,
    ExplainQuery,
    ExplainReply,
    LiveOutput,
    LoadQuery,
    PrefixQuery,
    PrefixReply,
    StatusQuery,
    StatusReply,
)
from quire.proto.messages.params import INT64_MAX, ParameterError
from quire.proto.messages.requests import AbortLabels

LIMITS = ("max_num_seqs", "max_num_batched_tokens", "max_num_queued_reqs", "max_num_queued_tokens")
MAX_ABORT_IDS = 1024


class EngineInfo:
    """Facts of this server and its first model, and questions to that model's scheduler."""

    def __init__(self, config: FrontendConfig, models: ModelLookup, version: str) -> None:
        self.version = version
        self._config = config
        self._models = models
        self._model = models.default
        self._scheduler = models.default.scheduler
        self._started = time.monotonic()
        self._pictures = PacedQuestion(lambda: self._scheduler.ask(StatusQuery))
        self._trees = PacedQuestion(lambda: self._scheduler.ask(PrefixQuery))

    def server_info(self) -> api.ServerInfo:
        """The facts of this server. Never waits; numbers of the model are 0 until its workers are ready."""
        config, model, welcome = self._config, self._model, self._scheduler.welcome
        defaults, formats, facts = model.defaults, model.formats, model.facts
        measured: dict[str, Any] = {}
        if facts is not None:
            derived = ("block_size", "num_kv_tokens")
            names = {field.name for field in fields(api.ServerInfo)} & {*facts.__struct_fields__, *derived}
            measured = {name: getattr(facts, name) for name in names}
        limits: dict[str, Any] = {}
        if welcome is not None:
            limits = {name: getattr(welcome.limits, name) for name in LIMITS}
        return api.ServerInfo(
            version=self.version,
            state=self._scheduler.progress(),
            state_detail=self._scheduler.detail,
            model_names=self._models.names,
            uptime_seconds=time.monotonic() - self._started,
            **measured,
            **limits,
            default_timeout_seconds=config.default_timeout_seconds,
            max_timeout_seconds=config.max_timeout_seconds,
            default_temperature=defaults.temperature,
            default_top_p=defaults.top_p,
            default_top_k=defaults.top_k,
            default_min_p=defaults.min_p,
            default_repetition_penalty=defaults.repetition_penalty,
            supports_chat=model.template is not None,
            tool_parser=formats.tools.name if formats.tools is not None else "",
            reasoning_parser=formats.reasoning.name if formats.reasoning is not None else "",
            modalities=("text", *(kind for kind in KINDS if model.most_of(kind))),
            max_images=model.most_of("image"),
            max_videos=model.most_of("video"),
            labels=() if facts is None or facts.head is None else facts.head.labels,
            supports_priority=welcome is not None and welcome.limits.priority_enabled,
        )

    def model_info(self) -> api.ServerInfo:
        """The same once the numbers are known. Raises `RequestError` (STARTING) before."""
        served(self._scheduler.welcome)
        return self.server_info()

    @property
    def chat_template(self) -> str:
        """The text of the first model's chat template; empty: it takes no chats."""
        return self._model.template.text if self._model.template is not None else ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """The points in which the first model does less than its users may expect."""
        return (self._model.warning,) if self._model.warning else ()

    def models(self) -> list[api.Model]:
        """The served names, then the adapters. Raises `RequestError` (STARTING) before a worker was ready."""
        _, facts = served(self._scheduler.welcome)
        models = [api.Model(name, "", facts.max_model_len) for name in self._models.names]
        return models + [api.Model(name, models[0].name, facts.max_model_len) for name in facts.adapters]

    async def load(self) -> api.EngineLoad:
        """The scheduler's load. Raises `RequestError` when the scheduler does not answer."""
        return (await self._scheduler.ask(LoadQuery)).load

    async def abort(self, labels: Sequence[str]) -> list[tuple[str, int]]:
        """End every live request with one of these labels: (label, how many it had).

        Raises `ParameterError`, or `RequestError` when the scheduler does not answer.
        """
        if not 1 <= len(labels) <= MAX_ABORT_IDS:
            raise ParameterError("request_ids", f"must be 1 to {MAX_ABORT_IDS} request ids, got {len(labels)}")
        for position, label in enumerate(labels):
            check_request_id(label, f"request_ids[{position}]")
        answer = await self._scheduler.ask(AbortLabels, tuple(labels))
        return list(zip(labels, answer.counts, strict=True))

    async def explain(self, label: str, arrival: int = 0) -> ExplainReply:
        """The state and the history of the request with this label and number of arrival; 0: of the newest.

        Raises `ParameterError`, `RequestError` (UNKNOWN_REQUEST) when nobody remembers one, or when no answer comes.
        """
        check_request_id(label)
        answer = await self._scheduler.ask(ExplainQuery, label, arrival)
        if not answer.stories:
            text = f"no request {label[:128]!r} lives or has ended lately; it is the id its answer began with"
            raise RequestError("UNKNOWN_REQUEST", text, field="request_id")
        return answer

    async def status(self, after_step: int = -1) -> StatusReply:
        """The state of the whole engine at one instant, with step records newer than `after_step`.

        Raises `ParameterError`, or `RequestError` when the scheduler does not answer.
        """
        if not -1 <= after_step <= INT64_MAX:
            raise ParameterError("after_step", f"must be a step number, or -1 for all that are kept, got {after_step}")
        seen = await self._pictures.ask()
        return msgspec.structs.replace(seen, steps=tuple(one for one in seen.steps if one.step > after_step))

    async def outputs(self) -> tuple[LiveOutput, ...]:
        """Running and waiting outputs. Raises `RequestError` when the scheduler does not answer."""
        return (await self._scheduler.ask(StatusQuery, INT64_MAX, False)).outputs

    async def ended(self, after: int = 0) -> EndedReply:
        """The outputs that ended since the `count` of an earlier answer was `after`, as far as they are kept.

        Raises `RequestError` when the scheduler does not answer.
        """
        return await self._scheduler.ask(EndedQuery, after)

    async def prefixes(self) -> PrefixReply:
        """The tree of cached prefixes. Raises `RequestError` when the scheduler does not answer."""
        return await self._trees.ask()
