"""The gRPC services: protobuf in, pipeline, protobuf out. No logic of their own."""

import asyncio
import time
from dataclasses import fields
from typing import Any

import grpc.aio

from quire.frontend.call import Call
from quire.frontend.collect import collect
from quire.frontend.config import FrontendConfig
from quire.frontend.defaults import Defaults
from quire.frontend.link import SchedulerLink
from quire.frontend.pipeline import Pipeline
from quire.proto import api, grpc_map
from quire.proto.generated import quire_pb2 as pb
from quire.proto.generated import quire_pb2_grpc
from quire.proto.params import ParameterError

Context = grpc.aio.ServicerContext[Any, Any]

LIMITS = ("max_num_seqs", "max_num_batched_tokens", "max_num_queued_reqs", "max_num_queued_tokens")
MAX_ABORT_IDS = 1024


class InferenceServicer(quire_pb2_grpc.InferenceServicer):
    """`quire.v1.Inference`."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        generate = grpc_map.generate_request(request)
        async with self._pipeline.open(generate, _call(context)) as stream:
            generation = await collect(stream)
            if generate.logprobs is None and generate.prompt_logprobs is None:
                return grpc_map.generation_message(generation)
            # a million candidates take seconds, in which the loop must beat
            return await asyncio.to_thread(grpc_map.generation_message, generation)

    async def Stream(self, request: pb.GenerateRequest, context: Context) -> None:
        generate = grpc_map.generate_request(request)
        async with self._pipeline.open(generate, _call(context)) as stream:
            sequence = 0
            try:
                while events := await stream.take():
                    for event in events:
                        await context.write(grpc_map.event_message(sequence, event))
                        sequence += 1
            except asyncio.CancelledError:
                if (failure := stream.slow_reader()) is not None:
                    raise failure from None  # the stream itself cancelled a write that did not move
                raise

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        grpc_map.refuse_unknown_fields(request)
        text: str | api.Chat | None = None
        if request.HasField("text"):
            text = request.text
        elif request.HasField("chat"):
            text = grpc_map.chat(request.chat)
        add_special = request.add_special_tokens if request.HasField("add_special_tokens") else None
        return grpc_map.tokens_message(await self._pipeline.tokenize(text, _model(request), add_special))

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:
        grpc_map.refuse_unknown_fields(request)
        skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else None
        text = await self._pipeline.detokenize(tuple(request.token_ids), _model(request), skip)
        return pb.DetokenizeResponse(text=text)


class ControlServicer(quire_pb2_grpc.ControlServicer):
    """`quire.v1.Control`."""

    def __init__(
        self, config: FrontendConfig, link: SchedulerLink, defaults: Defaults, supports_chat: bool, version: str
    ) -> None:
        self._config = config
        self._link = link
        self._defaults = defaults
        self._supports_chat = supports_chat
        self._version = version
        self._started = time.monotonic()

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Context) -> pb.GetServerInfoResponse:
        grpc_map.refuse_unknown_fields(request)
        config, welcome, defaults = self._config, self._link.welcome, self._defaults
        facts = welcome.facts if welcome is not None else None
        measured: dict[str, Any] = {}
        if facts is not None:
            names = {field.name for field in fields(api.ServerInfo)} & set(facts.__struct_fields__)
            measured = {name: getattr(facts, name) for name in names}
        limits: dict[str, Any] = {}
        if welcome is not None:
            limits = {name: getattr(welcome.limits, name) for name in LIMITS}
        info = api.ServerInfo(
            version=self._version,
            state=self._link.state,
            state_detail=self._link.detail,
            model_names=config.served_model_names,
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
            supports_chat=self._supports_chat,
            supports_priority=welcome is not None and welcome.limits.priority_enabled,
        )
        return grpc_map.server_info_message(info)

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        grpc_map.refuse_unknown_fields(request)
        welcome = self._link.welcome
        facts = welcome.facts if welcome is not None else None
        length = facts.max_model_len if facts is not None else 0
        models = [api.Model(name, "", length) for name in self._config.served_model_names]
        base = self._config.served_model_names[0]
        models += [api.Model(name, base, length) for name in (facts.adapters if facts is not None else ())]
        return grpc_map.models_message(models)

    async def GetLoad(self, request: pb.GetLoadRequest, context: Context) -> pb.GetLoadResponse:
        grpc_map.refuse_unknown_fields(request)
        return grpc_map.load_message(await self._link.ask_load())

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        grpc_map.refuse_unknown_fields(request)
        labels = tuple(request.request_ids)
        if not 1 <= len(labels) <= MAX_ABORT_IDS or not all(labels):
            raise ParameterError("request_ids", f"must be 1 to {MAX_ABORT_IDS} request ids, none of them empty")
        counts = await self._link.abort_labels(labels)
        return pb.AbortResponse(
            aborted=[
                pb.AbortResponse.Aborted(request_id=label, count=count)
                for label, count in zip(labels, counts, strict=True)
            ]
        )


def _call(context: Context) -> Call:
    metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    return Call("grpc", context.time_remaining(), metadata.get("traceparent", ""), metadata.get("tracestate", ""))


def _model(request: pb.TokenizeRequest | pb.DetokenizeRequest) -> str | None:
    return request.model if request.HasField("model") else None
