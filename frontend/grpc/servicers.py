"""The gRPC servicers: protobuf in, pipeline, protobuf out. They have no logic of their own."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import grpc.aio

from quire.frontend.call import Call
from quire.frontend.grpc.write_turns import WriteTurns
from quire.frontend.http.decoding.ignored import HEADER, Ignored
from quire.frontend.limits.byte_budget import body_size
from quire.frontend.limits.work_pool import LARGE_BYTES, WorkPool
from quire.frontend.request.collect import collect
from quire.frontend.request.engine_info import EngineInfo
from quire.frontend.request.pipeline import RequestPipeline
from quire.frontend.security.keys import bearer, tenant_of
from quire.frontend.stream.parsed_stream import ParsedStream
from quire.frontend.stream.request_stream import RequestStream
from quire.proto import api, grpc_map
from quire.proto.generated import quire_pb2 as pb
from quire.proto.generated import quire_pb2_grpc
from quire.proto.token_column import token_column

M = TypeVar("M")
V = TypeVar("V")
IGNORED = HEADER.decode()
Context = grpc.aio.ServicerContext[Any, Any]


class InferenceServicer(quire_pb2_grpc.InferenceServicer):
    """`quire.v1.Inference`."""

    def __init__(self, pipeline: RequestPipeline, bodies: WorkPool, answers: WorkPool, turns: WriteTurns) -> None:
        self._pipeline = pipeline
        self._bodies = bodies
        self._answers = answers
        self._turns = turns

    async def _read(self, read: Callable[[M], V], message: M) -> V:
        """A message as a value of `api`: not on the event loop when it is large."""
        return await self._bodies.run(body_size(), lambda _: read(message))

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse | bytes:
        generate = await self._read(grpc_map.generate_request, request)
        async with self._pipeline.open(generate, _call(context)) as stream:
            generation = await collect(stream)
            if generate.logprobs is None and generate.prompt_logprobs is None:
                return grpc_map.generation_message(generation)
            # a million candidates take seconds, in which the loop must beat
            return await self._answers.run(
                LARGE_BYTES, lambda _: grpc_map.generation_message(generation).SerializeToString()
            )

    async def Stream(self, request: pb.GenerateRequest, context: Context) -> None:
        generate = await self._read(grpc_map.generate_request, request)
        async with self._pipeline.open(generate, _call(context, streams=True)) as stream:
            sequence = 0
            try:
                while events := await self._next_events(stream, is_first=not sequence):
                    if not sequence:
                        # apart: no status could follow a first message that carries it and is stuck
                        await context.send_initial_metadata(())
                    for event in events:
                        await context.write(grpc_map.event_message(sequence, event))
                        sequence += 1
            except asyncio.CancelledError:
                if (failure := stream.slow_reader()) is not None:
                    raise failure from None  # the stream itself cancelled a write that did not move
                raise

    async def _next_events(self, stream: RequestStream | ParsedStream, is_first: bool) -> Sequence[api.Event]:
        """Events that the stream has when it is its turn to write; empty at the end."""
        await stream.ready()
        await self._turns.begin(is_first)
        return await stream.take()

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> bytes:
        embeddings = await self._pipeline.embed(await self._read(grpc_map.embed_request, request), _call(context))
        # a million numbers take a while, in which the loop must beat
        return await self._answers.run(
            LARGE_BYTES, lambda _: grpc_map.embeddings_message(embeddings).SerializeToString()
        )

    async def Score(self, request: pb.ScoreRequest, context: Context) -> pb.ScoreResponse:
        score = await self._read(grpc_map.score_request, request)
        return grpc_map.scores_message(await self._pipeline.score(score, _call(context)))

    async def Classify(self, request: pb.ClassifyRequest, context: Context) -> bytes:
        found = await self._pipeline.classify(await self._read(grpc_map.classify_request, request), _call(context))
        return await self._answers.run(LARGE_BYTES, lambda _: grpc_map.classifications_bytes(found))

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> bytes:
        text: str | api.Chat | None = None
        if request.HasField("text"):
            text = request.text
            request.ClearField("text")  # megabytes, which would stay until the answer is sent
        elif request.HasField("chat"):
            text = await self._read(grpc_map.chat, request.chat)
        add_special = request.add_special_tokens if request.HasField("add_special_tokens") else None
        parse = request.parse_special if request.HasField("parse_special") else None
        tokens = await self._pipeline.tokenize(
            text, _model(request), add_special, parse, request.return_texts, _call(context)
        )
        size = 8 * len(tokens.token_ids)
        return await self._answers.run(size, lambda _: grpc_map.tokens_bytes(tokens))

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:
        skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else None
        ids = await self._read(token_column, request.token_ids)
        text = await self._pipeline.detokenize(ids, _model(request), skip)
        return pb.DetokenizeResponse(text=text)


class ControlServicer(quire_pb2_grpc.ControlServicer):
    """`quire.v1.Control`."""

    def __init__(self, engine_info: EngineInfo) -> None:
        self._engine_info = engine_info

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Context) -> pb.GetServerInfoResponse:
        return grpc_map.server_info_message(self._engine_info.server_info())

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        return grpc_map.models_message(self._engine_info.models())

    async def GetLoad(self, request: pb.GetLoadRequest, context: Context) -> pb.GetLoadResponse:
        return grpc_map.load_message(await self._engine_info.load())

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        aborted = await self._engine_info.abort(request.request_ids)
        return pb.AbortResponse(
            aborted=[pb.AbortResponse.Aborted(request_id=label, count=count) for label, count in aborted]
        )

    async def ExplainRequest(self, request: pb.ExplainRequestRequest, context: Context) -> pb.ExplainRequestResponse:
        return grpc_map.explanation_message(await self._engine_info.explain(request.request_id))

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        after_step = request.after_step if request.HasField("after_step") else -1
        return grpc_map.status_message(await self._engine_info.status(after_step))


def _call(context: Context, streams: bool = False) -> Call:
    metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    parent, state = metadata.get("traceparent", ""), metadata.get("tracestate", "")
    tenant = tenant_of(bearer(metadata.get("authorization")))
    dropped = Ignored(refuses_unknown=True)

    def note(name: str) -> None:
        """Tell the caller at the end of the call what was dropped of its request, as HTTP's header does."""
        dropped.note(name)
        context.set_trailing_metadata(((IGNORED, dropped.header().decode()),))

    return Call("grpc", context.time_remaining(), parent, state, tenant, streams, note=note)


def _model(request: pb.TokenizeRequest | pb.DetokenizeRequest) -> str | None:
    return request.model if request.HasField("model") else None
