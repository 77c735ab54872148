"""Events and answers: `api` to protobuf and back."""

from collections.abc import Iterable, Iterator

from quire.proto import api
from quire.proto.generated import quire_pb2 as pb
from quire.proto.grpc_map.fields import fill, read
from quire.proto.messages.message import Usage
from quire.proto.token_column import STEP

_FINISH: dict[api.FinishWord, pb.FinishReason] = {
    "stop": pb.FINISH_REASON_STOP,
    "length": pb.FINISH_REASON_LENGTH,
    "abort": pb.FINISH_REASON_ABORT,
    "deadline": pb.FINISH_REASON_DEADLINE,
    "error": pb.FINISH_REASON_ERROR,
}


_TOKEN_PROBS = bytes([pb.ClassifyResponse.TOKEN_PROBS_FIELD_NUMBER << 3 | 2])
"""Tag of an entry, before its length."""

_FINISH_WORDS: dict[int, api.FinishWord] = {number: word for word, number in _FINISH.items()}


def event_message(sequence: int, event: api.Event) -> pb.StreamEvent:
    """For servers; `sequence` counts the events of the stream from 0."""
    if isinstance(event, api.Delta):
        delta = pb.Delta(output_index=event.output_index, text=event.text, token_ids=event.token_ids)
        if event.logprobs:
            delta.logprobs.extend(_logprob_messages(event.logprobs))
        if event.reasoning:
            delta.reasoning = event.reasoning
        if event.tool_calls:
            delta.tool_calls.extend(fill(pb.ToolCallDelta, call) for call in event.tool_calls)
        return pb.StreamEvent(sequence=sequence, delta=delta)
    if isinstance(event, api.Finished):
        return pb.StreamEvent(sequence=sequence, finished=_finished_message(event))
    if isinstance(event, api.PromptLogprobs):
        entries = _logprob_messages(event.entries)
        return pb.StreamEvent(
            sequence=sequence, prompt_logprobs=pb.PromptLogprobs(first_position=event.first_position, entries=entries)
        )
    return pb.StreamEvent(sequence=sequence, started=fill(pb.Started, event))


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
            tuple(read(api.ToolCallDelta, call) for call in delta.tool_calls),
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
            tool_calls=[fill(pb.ToolCall, call) for call in output.tool_calls],
            parts=map(_part_message, output.parts),
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
            tuple(read(api.ToolCall, call) for call in output.tool_calls),
            tuple(map(_part, output.parts)),
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


def _part_message(part: api.OutputPart) -> pb.OutputPart:
    if isinstance(part, api.Thought):
        return pb.OutputPart(reasoning=part.text)
    return pb.OutputPart(text=part) if isinstance(part, str) else pb.OutputPart(tool_call=fill(pb.ToolCall, part))


def _part(message: pb.OutputPart) -> api.OutputPart:
    if message.HasField("reasoning"):
        return api.Thought(message.reasoning)
    return read(api.ToolCall, message.tool_call) if message.HasField("tool_call") else message.text


def _finished_message(value: api.Finished) -> pb.Finished:
    message = pb.Finished(
        output_index=value.output_index,
        finish_reason=_FINISH[value.finish_reason],
        usage=fill(pb.Usage, value.usage),
    )
    if value.stop_string is not None:
        message.stop_string = value.stop_string
    elif value.stop_token_id is not None:
        message.stop_token_id = value.stop_token_id
    if value.error is not None:
        message.error.CopyFrom(fill(pb.ErrorDetail, value.error))
    return message


def _finished(message: pb.Finished) -> api.Finished:
    return api.Finished(
        message.output_index,
        _FINISH_WORDS[message.finish_reason],
        read(Usage, message.usage),
        message.stop_string if message.HasField("stop_string") else None,
        message.stop_token_id if message.HasField("stop_token_id") else None,
        read(api.ErrorDetail, message.error) if message.HasField("error") else None,
    )


def _logprob_messages(entries: Iterable[api.TokenLogprobs]) -> Iterator[pb.TokenLogprobs]:
    for entry in entries:
        yield pb.TokenLogprobs(
            token_id=entry.token_id,
            text=entry.text,
            logprob=entry.logprob,
            rank=entry.rank,
            top=[fill(pb.Candidate, one) for one in entry.top],
            named=[fill(pb.Candidate, one) for one in entry.named],
            token_bytes=entry.token_bytes,
        )


def _logprobs(message: pb.TokenLogprobs) -> api.TokenLogprobs:
    return api.TokenLogprobs(
        message.token_id,
        message.text,
        message.logprob,
        message.rank,
        tuple(read(api.Candidate, one) for one in message.top),
        tuple(read(api.Candidate, one) for one in message.named),
        message.token_bytes,
    )


def tokens_bytes(value: api.Tokens) -> bytes:
    """A serialized `TokenizeResponse`, made in short steps: a long text has millions of tokens.

    Messages joined are one message in which lists go on (protobuf's encoding guide, "Last One Wins").
    """
    pieces = [pb.TokenizeResponse(max_model_len=value.max_model_len).SerializeToString()]
    for start in range(0, len(value.token_ids), STEP):
        part = slice(start, start + STEP)
        pieces.append(pb.TokenizeResponse(token_ids=value.token_ids[part], texts=value.texts[part]).SerializeToString())
    return b"".join(pieces)


def tokens(message: pb.TokenizeResponse) -> api.Tokens:
    return read(api.Tokens, message)


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
    return fill(pb.ScoreResponse, value)


def scores(message: pb.ScoreResponse) -> api.Scores:
    return read(api.Scores, message)


def classifications_bytes(value: api.Classifications) -> bytes:
    """A serialized `ClassifyResponse`, for servers: numbers of tokens, of which there are millions, in short steps."""
    found = pb.ClassifyResponse(
        request_id=value.request_id,
        model=value.model,
        labels=value.labels,
        probs=[pb.LabelNumbers(values=numbers) for numbers in value.probs],
        prompt_tokens=value.prompt_tokens,
    )
    pieces = [found.SerializeToString()]
    for numbers in value.token_probs:
        parts = (pb.LabelNumbers(values=numbers[start : start + STEP]) for start in range(0, len(numbers), STEP))
        packed = b"".join(part.SerializeToString() for part in parts)  # one message, as in `tokens_bytes`
        pieces += (_TOKEN_PROBS, _varint(len(packed)), packed)
    return b"".join(pieces)


def classifications(message: pb.ClassifyResponse) -> api.Classifications:
    """For clients; the inverse of `classifications_bytes`."""
    probs = [tuple(numbers.values) for numbers in message.probs]
    of_tokens = tuple(tuple(numbers.values) for numbers in message.token_probs)
    return api.Classifications(
        message.request_id, message.model, tuple(message.labels), probs, message.prompt_tokens, of_tokens
    )


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])
