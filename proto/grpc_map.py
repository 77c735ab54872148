"""Protobuf messages to values of `api` and back: the only file that knows both."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import msgspec
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from quire.proto import api
from quire.proto.generated import quire_pb2 as pb
from quire.proto.params import ParameterError, Structured
from quire.proto.requests import Explanation, LiveOutput, Load, Status, StepRecord, Usage

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
        with _sendable(field.name):
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
    """Raises `ParameterError` for a message without a role or a content, or a tool without a name."""
    messages = []
    for index, one in enumerate(message.messages):
        if not one.HasField("role"):
            raise ParameterError(f"chat.messages[{index}].role", "is missing")
        if not one.HasField("content") and not one.tool_calls:
            raise ParameterError(f"chat.messages[{index}].content", "is missing")
        calls = tuple(_read(api.ToolCall, call) for call in one.tool_calls)
        messages.append(api.ChatMessage(one.role, one.content, one.name, one.reasoning, calls, one.tool_call_id))
    for index, tool in enumerate(message.tools):
        if not tool.HasField("name"):
            raise ParameterError(f"chat.tools[{index}].name", "is missing")
    return api.Chat(
        messages,
        message.add_generation_prompt if message.HasField("add_generation_prompt") else None,
        message.continue_final_message if message.HasField("continue_final_message") else None,
        tuple(_read(api.Tool, tool) for tool in message.tools),
        message.tool_choice if message.HasField("tool_choice") else None,
        message.parallel_tool_calls if message.HasField("parallel_tool_calls") else None,
        message.template_kwargs,
    )


def chat_message(value: api.Chat) -> pb.Chat:
    """For clients; the inverse of reading a request's chat."""
    return pb.Chat(
        messages=[_turn_message(one) for one in value.messages],
        add_generation_prompt=value.add_generation_prompt,
        continue_final_message=value.continue_final_message,
        tools=[_fill(pb.Tool, tool) for tool in value.tools],
        tool_choice=value.tool_choice,
        parallel_tool_calls=value.parallel_tool_calls,
        template_kwargs=value.template_kwargs or None,
    )


def _turn_message(one: api.ChatMessage) -> pb.ChatMessage:
    return pb.ChatMessage(
        role=one.role,
        content=one.content,
        name=one.name or None,
        reasoning=one.reasoning or None,
        tool_calls=[_fill(pb.ToolCall, call) for call in one.tool_calls],
        tool_call_id=one.tool_call_id or None,
    )


def embed_request(message: pb.EmbedRequest) -> api.EmbedRequest:
    """Raises `ParameterError` for unknown fields and empty inputs."""
    refuse_unknown_fields(message)
    inputs: list[str | Sequence[int]] = []
    for index, one in enumerate(message.inputs):
        kind = one.WhichOneof("input")
        if kind is None:
            raise ParameterError(f"inputs[{index}]", "is empty; set text or token_ids", "EMPTY_PROMPT")
        inputs.append(one.text if kind == "text" else tuple(one.token_ids.ids))
    return api.EmbedRequest(inputs=inputs, **_set_scalars(message))


def embed_request_message(request: api.EmbedRequest) -> pb.EmbedRequest:
    """Raises `RequestError` for a value its field cannot carry."""
    message = pb.EmbedRequest()
    _put_scalars(message, request)
    with _sendable("inputs"):
        for one in request.inputs:
            if isinstance(one, str):
                message.inputs.add(text=one)
            else:
                message.inputs.add(token_ids=pb.TokenIds(ids=one))
    return message


def score_request(message: pb.ScoreRequest) -> api.ScoreRequest:
    """Raises `ParameterError` for unknown fields and a missing query."""
    refuse_unknown_fields(message)
    if not message.HasField("query"):
        raise ParameterError("query", "is missing", "EMPTY_PROMPT")
    return api.ScoreRequest(documents=tuple(message.documents), **_set_scalars(message))


def score_request_message(request: api.ScoreRequest) -> pb.ScoreRequest:
    """Raises `RequestError` for a value its field cannot carry."""
    message = pb.ScoreRequest()
    _put_scalars(message, request)
    with _sendable("documents"):
        message.documents.extend(request.documents)
    return message


def _set_scalars(message: Message) -> dict[str, Any]:
    return {field.name: value for field, value in message.ListFields() if not field.is_repeated}


def _put_scalars(message: Message, source: object) -> None:
    for field in message.DESCRIPTOR.fields:
        value = None if field.is_repeated else getattr(source, field.name)
        if value is not None:
            with _sendable(field.name):
                setattr(message, field.name, value)


# ---- events


def event_message(sequence: int, event: api.Event) -> pb.StreamEvent:
    """For servers; `sequence` counts the events of the stream from 0."""
    if isinstance(event, api.Delta):
        delta = pb.Delta(output_index=event.output_index, text=event.text, token_ids=event.token_ids)
        if event.logprobs:
            delta.logprobs.extend(_logprob_messages(event.logprobs))
        if event.reasoning:
            delta.reasoning = event.reasoning
        if event.tool_calls:
            delta.tool_calls.extend(_fill(pb.ToolCallDelta, call) for call in event.tool_calls)
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
            delta.output_index,
            delta.text,
            tuple(delta.token_ids),
            tuple(_logprobs(one) for one in delta.logprobs),
            delta.reasoning,
            tuple(_read(api.ToolCallDelta, call) for call in delta.tool_calls),
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
            reasoning=output.reasoning,
            tool_calls=[_fill(pb.ToolCall, call) for call in output.tool_calls],
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
            output.reasoning,
            tuple(_read(api.ToolCall, call) for call in output.tool_calls),
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


def embeddings_message(value: api.Embeddings) -> pb.EmbedResponse:
    """For servers; the inverse of `embeddings`."""
    vectors = [pb.Vector(values=vector) for vector in value.vectors]
    return pb.EmbedResponse(
        request_id=value.request_id, model=value.model, vectors=vectors, prompt_tokens=value.prompt_tokens
    )


def embeddings(message: pb.EmbedResponse) -> api.Embeddings:
    """For clients; the inverse of `embeddings_message`."""
    vectors = [tuple(vector.values) for vector in message.vectors]
    return api.Embeddings(message.request_id, message.model, vectors, message.prompt_tokens)


def scores_message(value: api.Scores) -> pb.ScoreResponse:
    return _fill(pb.ScoreResponse, value)


def scores(message: pb.ScoreResponse) -> api.Scores:
    return _read(api.Scores, message)


def explanation_message(value: Explanation) -> pb.ExplainRequestResponse:
    return pb.ExplainRequestResponse(
        request_id=value.label,
        stories=[
            pb.Story(
                output_index=story.output_index,
                state=story.state,
                ahead=story.ahead,
                usage=_fill(pb.Usage, story.usage),
                moments=[_fill(pb.Moment, moment) for moment in story.moments],
            )
            for story in value.stories
        ],
    )


def explanation(message: pb.ExplainRequestResponse) -> api.Explained:
    """For clients; the inverse of `explanation_message`."""
    stories = [
        api.Story(
            story.output_index,
            story.state,
            story.ahead,
            _read(Usage, story.usage),
            tuple(api.Moment(one.seconds, one.what, one.num_tokens, one.detail) for one in story.moments),
        )
        for story in message.stories
    ]
    return api.Explained(message.request_id, stories)


def status_message(value: Status) -> pb.GetStatusResponse:
    return pb.GetStatusResponse(
        now=value.now,
        load=load_message(value.load),
        outputs=[_fill(pb.LiveOutput, one) for one in value.outputs],
        blocks=memoryview(value.blocks).cast("H").tolist(),
        steps=[_fill(pb.StepRecord, one) for one in value.steps],
    )


def status(message: pb.GetStatusResponse) -> api.EngineStatus:
    return api.EngineStatus(
        message.now,
        load(message.load),
        tuple(_read(LiveOutput, one) for one in message.outputs),
        tuple(message.blocks),
        tuple(_read(StepRecord, one) for one in message.steps),
    )


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
