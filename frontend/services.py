"""The gRPC services: protobuf in, pipeline, protobuf out. No logic of their own."""

import asyncio
from typing import Any

import grpc.aio

from quire.frontend.call import Call
from quire.frontend.collect import collect
from quire.frontend.control import Control
from quire.frontend.pipeline import Pipeline
from quire.proto import api, grpc_map
from quire.proto.generated import quire_pb2 as pb
from quire.proto.generated import quire_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


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
        async with self._pipeline.open(generate, _call(context, streams=True)) as stream:
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

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        embeddings = await self._pipeline.embed(grpc_map.embed_request(request), _call(context))
        # a million numbers take a while, in which the loop must beat
        return await asyncio.to_thread(grpc_map.embeddings_message, embeddings)

    async def Score(self, request: pb.ScoreRequest, context: Context) -> pb.ScoreResponse:
        return grpc_map.scores_message(await self._pipeline.score(grpc_map.score_request(request), _call(context)))

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

    def __init__(self, control: Control) -> None:
        self._control = control

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Context) -> pb.GetServerInfoResponse:
        grpc_map.refuse_unknown_fields(request)
        return grpc_map.server_info_message(self._control.server_info())

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        grpc_map.refuse_unknown_fields(request)
        return grpc_map.models_message(self._control.models())

    async def GetLoad(self, request: pb.GetLoadRequest, context: Context) -> pb.GetLoadResponse:
        grpc_map.refuse_unknown_fields(request)
        return grpc_map.load_message(await self._control.load())

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        grpc_map.refuse_unknown_fields(request)
        aborted = await self._control.abort(request.request_ids)
        return pb.AbortResponse(
            aborted=[pb.AbortResponse.Aborted(request_id=label, count=count) for label, count in aborted]
        )

    async def ExplainRequest(self, request: pb.ExplainRequestRequest, context: Context) -> pb.ExplainRequestResponse:
        grpc_map.refuse_unknown_fields(request)
        return grpc_map.explanation_message(await self._control.explain(request.request_id))

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        grpc_map.refuse_unknown_fields(request)
        after_step = request.after_step if request.HasField("after_step") else -1
        return grpc_map.status_message(await self._control.status(after_step))


def _call(context: Context, streams: bool = False) -> Call:
    metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    parent, state = metadata.get("traceparent", ""), metadata.get("tracestate", "")
    return Call("grpc", context.time_remaining(), parent, state, streams)


def _model(request: pb.TokenizeRequest | pb.DetokenizeRequest) -> str | None:
    return request.model if request.HasField("model") else None
