"""Requests: protobuf to `api` and back."""

from collections.abc import Sequence
from typing import Any

import msgspec

from quire.proto import api
from quire.proto.generated import quire_pb2 as pb
from quire.proto.grpc_map.conversation import chat, chat_message
from quire.proto.grpc_map.fields import put_scalars, sendable, set_scalars
from quire.proto.messages.params import ParameterError, Structured
from quire.proto.token_column import token_column


def generate_request(message: pb.GenerateRequest) -> api.GenerateRequest:
    """The request of a message whose contents were checked. Raises `ParameterError`."""
    values: dict[str, Any] = {}
    for field, value in message.ListFields():
        name = field.name
        if name == "prompt":
            values["input"] = value
        elif name == "prompt_token_ids":
            values["input"] = token_column(value.ids)
        elif name == "chat":
            values["input"] = chat(value)
        elif name == "logit_bias":
            values[name] = dict(value)
        elif name == "structured":
            values[name] = structured(value)
        else:
            values[name] = tuple(value) if field.is_repeated else value
    return api.GenerateRequest(**values)


def structured(message: pb.Structured) -> Structured:
    """Raises `ParameterError` when nothing is set or a text is too long."""
    kind = message.WhichOneof("constraint")
    if kind is None:
        raise ParameterError("structured", "is empty; set one of its constraints", "INVALID_GRAMMAR")
    if kind == "json_object":
        if not message.json_object:
            raise ParameterError("structured.json_object", "must be true; leave `structured` unset for any text")
        return Structured("json_object")
    if kind == "choice":
        return Structured("choice", msgspec.json.encode(list(message.choice.choices)).decode())
    return Structured(kind, getattr(message, kind))


def structured_message(value: Structured) -> pb.Structured:
    """For clients; the inverse of `structured`."""
    if value.kind == "json_object":
        return pb.Structured(json_object=True)
    if value.kind == "choice":
        return pb.Structured(choice=pb.Choices(choices=msgspec.json.decode(value.text, type=list[str])))
    text: Any = {value.kind: value.text}
    return pb.Structured(**text)


def generate_request_message(request: api.GenerateRequest) -> pb.GenerateRequest:
    """Raises `RequestError` for a value its field cannot carry."""
    message = pb.GenerateRequest()
    for field in pb.GenerateRequest.DESCRIPTOR.fields:
        value = getattr(request, field.name, None)  # None also for the three kinds of input
        if value is None:
            continue
        with sendable(field.name):
            if field.name == "logit_bias":
                message.logit_bias.update(value)
            elif field.name == "structured":
                message.structured.CopyFrom(structured_message(value))
            elif field.is_repeated and isinstance(value, str):
                raise TypeError(f"expected a sequence of strings, got {value[:32]!r}; put it into a tuple")
            elif field.is_repeated:
                getattr(message, field.name).extend(value)
            else:
                setattr(message, field.name, value)
    with sendable("input"):
        if isinstance(request.input, str):
            message.prompt = request.input
        elif isinstance(request.input, api.Chat):
            message.chat.CopyFrom(chat_message(request.input))
        elif request.input is not None:
            message.prompt_token_ids.SetInParent()
            message.prompt_token_ids.ids.extend(request.input)
    return message


def embed_request(message: pb.EmbedRequest) -> api.EmbedRequest:
    """The request of a message whose contents were checked. Raises `ParameterError` for empty inputs."""
    return api.EmbedRequest(inputs=_inputs(message), **set_scalars(message))


def embed_request_message(request: api.EmbedRequest) -> pb.EmbedRequest:
    """Raises `RequestError` for a value its field cannot carry."""
    message = pb.EmbedRequest()
    put_scalars(message, request)
    _put_inputs(message, request)
    return message


def classify_request(message: pb.ClassifyRequest) -> api.ClassifyRequest:
    """The request of a message whose contents were checked. Raises `ParameterError` for empty inputs."""
    return api.ClassifyRequest(inputs=_inputs(message), **set_scalars(message))


def classify_request_message(request: api.ClassifyRequest) -> pb.ClassifyRequest:
    """Raises `RequestError` for a value its field cannot carry."""
    message = pb.ClassifyRequest()
    put_scalars(message, request)
    _put_inputs(message, request)
    return message


def _inputs(message: pb.EmbedRequest | pb.ClassifyRequest) -> list[str | Sequence[int] | api.Chat]:
    inputs: list[str | Sequence[int] | api.Chat] = []
    for index, one in enumerate(message.inputs):
        kind = one.WhichOneof("input")
        if kind is None:
            raise ParameterError(f"inputs[{index}]", "is empty; set text, token_ids or chat", "EMPTY_PROMPT")
        if kind == "chat":
            inputs.append(chat(one.chat))
        else:
            inputs.append(one.text if kind == "text" else token_column(one.token_ids.ids))
    return inputs


def _put_inputs(message: pb.EmbedRequest | pb.ClassifyRequest, request: api.EmbedRequest | api.ClassifyRequest) -> None:
    with sendable("inputs"):
        for one in request.inputs:
            if isinstance(one, str):
                message.inputs.add(text=one)
            elif isinstance(one, api.Chat):
                message.inputs.add(chat=chat_message(one))
            else:
                message.inputs.add(token_ids=pb.TokenIds(ids=one))


def score_request(message: pb.ScoreRequest) -> api.ScoreRequest:
    """The request of a message whose contents were checked."""
    documents, queries = tuple(message.documents), tuple(message.queries)
    return api.ScoreRequest(documents=documents, queries=queries, **set_scalars(message))


def score_request_message(request: api.ScoreRequest) -> pb.ScoreRequest:
    """Raises `RequestError` for a value its field cannot carry."""
    message = pb.ScoreRequest()
    put_scalars(message, request)
    for field in ("documents", "queries"):
        with sendable(field):
            getattr(message, field).extend(getattr(request, field))
    return message
