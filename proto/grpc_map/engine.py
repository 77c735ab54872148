"""Facts, load and requests of a server: to protobuf and back."""

from collections.abc import Sequence
from typing import Any, cast

from quire.proto import api
from quire.proto.generated import quire_pb2 as pb
from quire.proto.grpc_map.fields import fill, read
from quire.proto.messages.introspection import (
    EngineLoad,
    ExplainReply,
    LiveOutput,
    Moment,
    StatusReply,
    StepRecord,
    Story,
)
from quire.proto.messages.message import Usage


def server_info_message(value: api.ServerInfo) -> pb.GetServerInfoResponse:
    return fill(pb.GetServerInfoResponse, value)


def server_info(message: pb.GetServerInfoResponse) -> api.ServerInfo:
    return read(api.ServerInfo, message)


def models_message(models: Sequence[api.Model]) -> pb.ListModelsResponse:
    return pb.ListModelsResponse(models=[fill(pb.Model, model) for model in models])


def models(message: pb.ListModelsResponse) -> tuple[api.Model, ...]:
    return tuple(read(api.Model, model) for model in message.models)


def load_message(load: EngineLoad) -> pb.GetLoadResponse:
    return fill(pb.GetLoadResponse, load)


def load(message: pb.GetLoadResponse) -> EngineLoad:
    return read(EngineLoad, message)


def explanation_message(value: ExplainReply) -> pb.ExplainRequestResponse:
    return pb.ExplainRequestResponse(
        request_id=value.label,
        stories=[
            pb.Story(
                output_index=story.output_index,
                state=story.state,
                ahead=story.ahead,
                usage=fill(pb.Usage, story.usage),
                moments=[fill(pb.Moment, moment) for moment in story.moments],
            )
            for story in value.stories
        ],
    )


def explanation(message: pb.ExplainRequestResponse) -> api.Explained:
    """For clients; the inverse of `explanation_message`."""
    stories = [
        Story(
            story.output_index,
            cast("Any", story.state),
            story.ahead,
            read(Usage, story.usage),
            tuple(read(Moment, one) for one in story.moments),
        )
        for story in message.stories
    ]
    return api.Explained(message.request_id, stories)


def status_message(value: StatusReply) -> pb.GetStatusResponse:
    return pb.GetStatusResponse(
        now=value.now,
        load=load_message(value.load),
        outputs=[fill(pb.LiveOutput, one) for one in value.outputs],
        blocks=memoryview(value.blocks).cast("H").tolist(),
        steps=[fill(pb.StepRecord, one) for one in value.steps],
    )


def status(message: pb.GetStatusResponse) -> api.EngineStatus:
    return api.EngineStatus(
        message.now,
        load(message.load),
        tuple(read(LiveOutput, one) for one in message.outputs),
        tuple(message.blocks),
        tuple(read(StepRecord, one) for one in message.steps),
    )
