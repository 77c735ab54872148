"""Answers of `/v1/messages`: the whole one, the events of a stream, and errors in Anthropic's shape."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from quire.frontend.http import sse
from quire.frontend.http.answer import timings
from quire.frontend.http.errors import HttpError, status_of
from quire.frontend.http.sse import data
from quire.proto import api
from quire.proto.api import RequestError
from quire.proto.messages.message import Usage

Json = dict[str, Any]

ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
TOO_LONG = re.compile(r"(\d+) prompt tokens and \d+ output tokens exceed the context of (\d+)")
"""The words of `validate.check_length`."""
PING = data({"type": "ping"}, "ping")
EVENTS = sse.EVENTS._replace(waiting=PING)


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """The facts of a request on which its answer depends besides what was generated."""

    names_edits: bool = False
    """True: the request asks for edits of its context, and the answer lists those that were made: none."""
    was_cut: bool = False
    """True: `max_tokens` is more than there was room for."""
    include_timings: bool = False

    def whole(self, generation: api.Generation) -> Json:
        """The answer to a request that does not stream."""
        (output,) = generation.outputs
        message = _message(generation.request_id, generation.model, [_block(part) for part in output.in_order])
        end = self.end(output.finished, bool(output.tool_calls))
        return message | end | {"usage": self.usage(output.finished.usage)} | self.edits()

    def end(self, finished: api.Finished, called: bool) -> Json:
        """The reason why the answer ended. `called`: it holds a call of a tool."""
        if finished.finish_reason == "length":
            reason = "model_context_window_exceeded" if self.was_cut else "max_tokens"
        elif finished.finish_reason == "abort":
            reason = "refusal"  # an operator ended it; of this API's words the one that makes no client go on by itself
        elif finished.stop_string is not None:
            reason = "stop_sequence"
        else:
            reason = "tool_use" if called else "end_turn"
        return {"stop_reason": reason, "stop_sequence": finished.stop_string}

    def usage(self, usage: Usage) -> Json:
        shown = _usage(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
        return shown | {"timings": timings([[usage]])} if self.include_timings else shown

    def edits(self) -> Json:
        return {"context_management": {"applied_edits": []}} if self.names_edits else {}


class MessageEvents:
    """The events of a stream: one content block is open at a time; what belongs to another closes it."""

    def __init__(self, shape: AnswerShape) -> None:
        self._shape = shape
        self._index = -1
        self._open = ""
        """Kind of the open block: thinking, text, or call and its number; empty: none."""
        self._called = False

    def events(self, event: api.Event) -> Iterator[bytes]:
        """The items of one event. A failed output ends without an item: the request's failure follows."""
        if isinstance(event, api.Started):
            message = _message(event.request_id, event.model, [])
            message["usage"] = _usage(event.prompt_tokens)
            yield _item("message_start", message=message)
            yield PING
        elif isinstance(event, api.Delta):
            if event.reasoning:
                yield from self._grow("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": event.reasoning})
            if event.text:
                yield from self._grow("text", {"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": event.text})
            for call in event.tool_calls:
                self._called = True
                start = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
                yield from self._grow(f"call {call.index}", start)
                if call.arguments:
                    yield self._delta({"type": "input_json_delta", "partial_json": call.arguments})
        elif isinstance(event, api.Finished) and event.error is None:
            yield from self._close()
            end = self._shape.end(event, self._called)
            yield _item("message_delta", delta=end, usage=self._shape.usage(event.usage), **self._shape.edits())
            yield _item("message_stop")

    def _grow(self, kind: str, start: Json) -> Iterator[bytes]:
        if kind != self._open:
            yield from self._close()
            self._open = kind
            self._index += 1
            yield _item("content_block_start", index=self._index, content_block=start)

    def _close(self) -> Iterator[bytes]:
        if self._open:
            if self._open == "thinking":
                yield self._delta({"type": "signature_delta", "signature": ""})
            self._open = ""
            yield _item("content_block_stop", index=self._index)

    def _delta(self, delta: Json) -> bytes:
        return _item("content_block_delta", index=self._index, delta=delta)


def error_body(error: RequestError | HttpError, request_id: str) -> Json:
    status = error.status if isinstance(error, HttpError) else status_of(error)
    kind = ERROR_TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")
    message = error.message
    if isinstance(error, RequestError) and error.reason == "CONTEXT_LENGTH_EXCEEDED":
        message = _too_long(message)
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def _too_long(message: str) -> str:
    """The message in the words by which agents learn that they must shorten the conversation."""
    numbers = TOO_LONG.search(message)
    return f"prompt is too long: {f'{numbers[1]} tokens > {numbers[2]} maximum' if numbers else message}"


def error_item(error: RequestError, request_id: str) -> bytes:
    """The last item of a stream that failed."""
    return data(error_body(error, request_id), "error")


def _item(type: str, **fields: Any) -> bytes:
    return data({"type": type, **fields}, type)


def _message(label: str, model: str, blocks: list[Json]) -> Json:
    return {
        "id": f"msg_{label}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": blocks,
        "stop_reason": None,
        "stop_sequence": None,
    }


def _block(part: api.OutputPart) -> Json:
    """The content block of a part."""
    if isinstance(part, api.Thought):
        return {"type": "thinking", "thinking": part.text, "signature": ""}
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "tool_use", "id": part.id, "name": part.name, "input": _input(part.arguments)}


def _usage(prompt: int, cached: int = 0, completion: int = 0) -> Json:
    """Anthropic counts what was cached apart."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": completion,
    }


def _input(arguments: str) -> Any:
    """A call's arguments as JSON. Arguments that were cut off, or never were an object, come as their text, under
    `unparsed`: nothing is lost, nothing made up.
    """
    try:
        msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return {"unparsed": arguments}
    return msgspec.Raw(arguments.encode())
