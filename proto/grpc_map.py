"""Protobuf messages to values of `api` and back: the only file that knows both."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from quire.proto import api
from quire.proto.generated import quire_pb2 as pb
from quire.proto.params import ParameterError
from quire.proto.requests import Load, Usage

M = TypeVar("M", bound=Message)
D = TypeVar("D")

_FINISH: dict[api.FinishWord, pb.FinishReason] = {
    "stop": pb.FINISH_REASON_STOP,
    "length": pb.FINISH_REASON_LENGTH,
    "abort": pb.FINISH_REASON_ABORT,
    "deadline": pb.FINISH_REASON_DEADLINE,
    "error": pb.FINISH_REASON_ERROR,
}
_FINISH_WORDS: dict[int, api.FinishWord] = {number: word for word, number in _FINISH.items()}


def refuse_unknown_fields(message: Message, path: str = "") -> None:
    """Raise `ParameterError` naming the first field number, at any depth, that this server's contract does not have."""
    for unknown in UnknownFieldSet(message):  # type: ignore[attr-defined]
        name = f"{path}field number {unknown.field_number}"
        raise ParameterError(name, "is unknown to this server; remove it or use a matching client", "UNKNOWN_FIELD")
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if field.is_repeated else (value,):
                refuse_unknown_fields(inner, f"{path}{field.name}.")


# ---- requests


def generate_request(message: pb.GenerateRequest) -> api.GenerateRequest:
    """Raises `ParameterError` for unknown fields."""
    refuse_unknown_fields(message)
    values: dict[str, Any] = {}
    for field, value in message.ListFields():
        name = field.name
        if name == "prompt":
            values["input"] = value
        elif name == "prompt_token_ids":
            values["input"] = tuple(value.ids)
        elif name == "chat":
            values["input"] = chat(value)
        elif name == "logit_bias":
            values[name] = dict(value)
        else:
            values[name] = tuple(value) if field.is_repeated else value
    return api.GenerateRequest(**values)


def generate_request_message(request: api.GenerateRequest) -> pb.GenerateRequest:
    """Raises `RequestError` for a value its field cannot carry."""
    message = pb.GenerateRequest()
    for field in pb.GenerateRequest.DESCRIPTOR.fields:
        value = getattr(request, field.name, None)  # None also for the three kinds of input
        if value is None:
            continue
        with _sendable(field.name):
            if field.name == "logit_bias":
                message.logit_bias.update(value)
            elif field.is_repeated and isinstance(value, str):
                raise TypeError(f"expected a sequence of strings, got {value[:32]!r}; put it into a tuple")
            elif field.is_repeated:
                getattr(message, field.name).extend(value)
            else:
                setattr(message, field.name, value)
    with _sendable("input"):
        if isinstance(request.input, str):
            message.prompt = request.input
        elif isinstance(request.input, api.Chat):
            message.chat.CopyFrom(chat_message(request.input))
        elif request.input is not None:
            message.prompt_token_ids.SetInParent()
            message.prompt_token_ids.ids.extend(request.input)
    return message


@contextmanager
def _sendable(field: str) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        raise api.RequestError("INVALID_PARAMETER", f"{field}: cannot be sent: {error}", field=field) from error


def chat(message: pb.Chat) -> api.Chat:
    """Raises `ParameterError` for a message without a role or a content."""
    messages = []
    for index, one in enumerate(message.messages):
        for field in ("role", "content"):
            if not one.HasField(field):
                raise ParameterError(f"chat.messages[{index}].{field}", "is missing")
        messages.append(api.ChatMessage(one.role, one.content))
    return api.Chat(
        messages,
        message.add_generation_prompt if message.HasField("add_generation_prompt") else None,
        message.continue_final_message if message.HasField("continue_final_message") else None,
    )


def chat_message(value: api.Chat) -> pb.Chat:
    """For clients; the inverse of reading a request's chat."""
    return pb.Chat(
        messages=[pb.ChatMessage(role=one.role, content=one.content) for one in value.messages],
        add_generation_prompt=value.add_generation_prompt,
        continue_final_message=value.continue_final_message,
    )


# ---- events


def event_message(sequence: int, event: api.Event) -> pb.StreamEvent:
    """For servers; `sequence` counts the events of the stream from 0."""
    if isinstance(event, api.Delta):
        delta = pb.Delta(output_index=event.output_index, text=event.text, token_ids=event.token_ids)
        if event.logprobs:
            delta.logprobs.extend(_logprob_messages(event.logprobs))
        return pb.StreamEvent(sequence=sequence, delta=delta)
    if isinstance(event, api.Finished):
        return pb.StreamEvent(sequence=sequence, finished=_finished_message(event))
    if isinstance(event, api.PromptLogprobs):
        entries = _logprob_messages(event.entries)
        return pb.StreamEvent(
            sequence=sequence, prompt_logprobs=pb.PromptLogprobs(first_position=event.first_position, entries=entries)
        )
    return pb.StreamEvent(sequence=sequence, started=_fill(pb.Started, event))


def event(message: pb.StreamEvent) -> api.Event:
    """Raises `ValueError` for an event of a newer server."""
    kind = message.WhichOneof("event")
    if kind == "delta":
        delta = message.delta
        return api.Delta(
            delta.output_index, delta.text, tuple(delta.token_ids), tuple(_logprobs(one) for one in delta.logprobs)
        )
    if kind == "finished":
        return _finished(message.finished)
    if kind == "started":
        started = message.started
        return api.Started(started.request_id, started.model, started.prompt_tokens, tuple(started.prompt_token_ids))
    if kind == "prompt_logprobs":
        prompt = message.prompt_logprobs
        return api.PromptLogprobs(prompt.first_position, tuple(_logprobs(one) for one in prompt.entries))
    raise ValueError(f"stream event {message.sequence} is of a kind this client does not know; update the client")


def generation_message(value: api.Generation) -> pb.GenerateResponse:
    """For servers; the inverse of `generation`."""
    outputs = [
        pb.Output(
            text=output.text,
            token_ids=output.token_ids,
            logprobs=_logprob_messages(output.logprobs),
            finished=_finished_message(output.finished),
        )
        for output in value.outputs
    ]
    return pb.GenerateResponse(
        request_id=value.request_id,
        model=value.model,
        prompt_tokens=value.prompt_tokens,
        prompt_token_ids=value.prompt_token_ids,
        prompt_logprobs=_logprob_messages(value.prompt_logprobs),
        outputs=outputs,
    )


def generation(message: pb.GenerateResponse) -> api.Generation:
    """For clients; the inverse of `generation_message`."""
    outputs = [
        api.Output(
            output.text,
            tuple(output.token_ids),
            tuple(_logprobs(one) for one in output.logprobs),
            _finished(output.finished),
        )
        for output in message.outputs
    ]
    return api.Generation(
        message.request_id,
        message.model,
        message.prompt_tokens,
        outputs,
        tuple(message.prompt_token_ids),
        tuple(_logprobs(one) for one in message.prompt_logprobs),
    )


def _finished_message(value: api.Finished) -> pb.Finished:
    message = pb.Finished(
        output_index=value.output_index,
        finish_reason=_FINISH[value.finish_reason],
        usage=_fill(pb.Usage, value.usage),
    )
    if value.stop_string is not None:
        message.stop_string = value.stop_string
    elif value.stop_token_id is not None:
        message.stop_token_id = value.stop_token_id
    if value.error is not None:
        message.error.CopyFrom(_fill(pb.ErrorDetail, value.error))
    return message


def _finished(message: pb.Finished) -> api.Finished:
    return api.Finished(
        message.output_index,
        _FINISH_WORDS[message.finish_reason],
        _read(Usage, message.usage),
        message.stop_string if message.HasField("stop_string") else None,
        message.stop_token_id if message.HasField("stop_token_id") else None,
        _read(api.ErrorDetail, message.error) if message.HasField("error") else None,
    )


def _logprob_messages(entries: Iterable[api.TokenLogprobs]) -> list[pb.TokenLogprobs]:
    return [
        pb.TokenLogprobs(
            token_id=entry.token_id,
            text=entry.text,
            logprob=entry.logprob,
            rank=entry.rank,
            top=[_fill(pb.Candidate, one) for one in entry.top],
            named=[_fill(pb.Candidate, one) for one in entry.named],
        )
        for entry in entries
    ]


def _logprobs(message: pb.TokenLogprobs) -> api.TokenLogprobs:
    return api.TokenLogprobs(
        message.token_id,
        message.text,
        message.logprob,
        message.rank,
        tuple(_read(api.Candidate, one) for one in message.top),
        tuple(_read(api.Candidate, one) for one in message.named),
    )


def tokens_message(value: api.Tokens) -> pb.TokenizeResponse:
    return _fill(pb.TokenizeResponse, value)


def tokens(message: pb.TokenizeResponse) -> api.Tokens:
    return _read(api.Tokens, message)


def server_info_message(value: api.ServerInfo) -> pb.GetServerInfoResponse:
    return _fill(pb.GetServerInfoResponse, value)


def server_info(message: pb.GetServerInfoResponse) -> api.ServerInfo:
    return _read(api.ServerInfo, message)


def models_message(models: Sequence[api.Model]) -> pb.ListModelsResponse:
    return pb.ListModelsResponse(models=[_fill(pb.Model, model) for model in models])


def models(message: pb.ListModelsResponse) -> tuple[api.Model, ...]:
    return tuple(_read(api.Model, model) for model in message.models)


def load_message(load: Load) -> pb.GetLoadResponse:
    return _fill(pb.GetLoadResponse, load)


def load(message: pb.GetLoadResponse) -> api.EngineLoad:
    return _read(api.EngineLoad, message)


def _fill(kind: type[M], source: object) -> M:
    """A message whose every field is the attribute of the same name."""
    return kind(**{field.name: getattr(source, field.name) for field in kind.DESCRIPTOR.fields})


def _read(kind: type[D], message: Message) -> D:
    """A value from a message whose every field has the name of a parameter of `kind`."""
    values = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        values[field.name] = tuple(value) if field.is_repeated else value
    return kind(**cast("dict[str, Any]", values))
