"""A response as it grows: events of the pipeline go in, events of the stream come out, and the object is kept."""

import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from quire.frontend.http.answer import json_list, timings
from quire.frontend.http.openai.chat_answer import logprobs
from quire.frontend.http.openai.responses.database import ResponseStatus
from quire.frontend.http.openai.responses.items import PREFIXES, new_id
from quire.frontend.http.openai.responses.tools import ClientTool, ToolBox, custom_input, search_arguments
from quire.frontend.http.openai.responses.types import ResponseRequest
from quire.proto import api
from quire.proto.api import RequestError, ServerInfo
from quire.proto.messages.message import Usage

Json = dict[str, Any]

NO_CHARACTER = "\ufffd"
"""In the text of a token whose bytes are no whole characters."""


class GrowingResponse:
    """The response object. One item is open at a time (reasoning, message or call); another one closes it."""

    def __init__(
        self, payload: ResponseRequest, tools: ToolBox, id: str, info: ServerInfo, include_timings: bool
    ) -> None:
        self._include_timings = include_timings
        self._tools = tools.by_name
        self.answer = _head(payload, id, info)
        self._items: list[Json] = self.answer["output"]
        self._sequence = 0
        self._open = ""
        """Kind of the open item: reasoning, message, or call and its number; empty: none."""
        self._grown: list[str] = []
        """Pieces of the open item's text or arguments, which are joined when it closes."""
        self._lagging: list[api.TokenLogprobs] = []
        """Logprobs of tokens since the newest reasoning, text or call: their text may be held back."""
        self._logprobs: list[bytes] = []
        """Members of the open message's list of logprobs, encoded: the end tells them four times."""

    @property
    def status(self) -> ResponseStatus:
        status: ResponseStatus = self.answer["status"]
        return status

    def events(self, event: api.Event) -> Iterator[Json]:
        """The stream's events for one event of the pipeline. After the end, `ending` is the last one."""
        if isinstance(event, api.Started):
            self.answer["model"] = event.model
            yield self._whole("response.created")
            yield self._whole("response.in_progress")
        elif isinstance(event, api.Delta):
            if event.reasoning:
                yield from self._grow_reasoning(event.reasoning)
            if event.text:
                yield from self._grow_text(event.text, _beside(event.text, self._lagging, event.logprobs))
            for call in event.tool_calls:
                yield from self._grow_call(call)
            if event.reasoning or event.text or event.tool_calls:
                self._lagging.clear()
            else:
                self._lagging += event.logprobs
        elif isinstance(event, api.Finished) and event.error is None:
            is_whole = event.finish_reason == "stop"
            yield from self._close("completed" if is_whole else "incomplete")
            self._finish(event)

    def ending(self) -> Json:
        """The last event of a response that has ended."""
        return self._whole(f"response.{self.status if self.status in ('completed', 'incomplete') else 'failed'}")

    @property
    def reasoning(self) -> str:
        return "".join(item["content"][0]["text"] for item in self._items if item["type"] == "reasoning")

    def count_reasoning(self, num_tokens: int) -> None:
        """Set the number of the output's tokens that are reasoning, once it has ended."""
        self.answer["usage"]["output_tokens_details"]["reasoning_tokens"] = num_tokens

    def fail(self, error: RequestError) -> None:
        self._join()
        code = "server_error"
        if error.status == "RESOURCE_EXHAUSTED":
            code = "rate_limit_exceeded"
        elif error.status == "INVALID_ARGUMENT":
            code = "invalid_prompt"
        self.answer |= {"status": "failed", "error": {"code": code, "message": error.message}}

    # ---- items

    def _grow_reasoning(self, text: str) -> Iterator[Json]:
        if self._open != "reasoning":
            item = {"type": "reasoning", "id": new_id("rs"), "summary": [], "content": [], "status": "in_progress"}
            yield from self._begin("reasoning", item, {"type": "reasoning_text", "text": ""})
        self._grown.append(text)
        yield self._about("response.reasoning_text.delta", content_index=0, delta=text)

    def _grow_text(self, text: str, tokens: Sequence[api.TokenLogprobs]) -> Iterator[Json]:
        if self._open != "message":
            item = {"type": "message", "id": new_id("msg"), "role": "assistant", "content": [], "status": "in_progress"}
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield from self._begin("message", item, part)
        self._grown.append(text)
        entries = json_list(logprobs(tokens))
        if tokens:
            self._logprobs.append(bytes(entries)[1:-1])
        yield self._about("response.output_text.delta", content_index=0, delta=text, logprobs=entries)

    def _grow_call(self, call: api.ToolCallDelta) -> Iterator[Json]:
        if self._open != f"call {call.index}":
            item = _call_item(call, self._tools.get(call.name) or ClientTool("function", call.name))
            yield from self._begin(f"call {call.index}", item, None)
        if call.arguments:
            self._grown.append(call.arguments)
            if self._items[-1]["type"] == "function_call":
                yield self._about("response.function_call_arguments.delta", delta=call.arguments)

    def _join(self) -> None:
        """Join the pieces of the open item's text or arguments."""
        grown = "".join(self._grown)
        self._grown.clear()
        item = self._items[-1] if self._items else {}
        if not self._open:
            return
        if not self._open.startswith("call "):
            self._part["text"] += grown
            if self._logprobs:
                self._part["logprobs"] = msgspec.Raw(b"[" + b",".join(self._logprobs) + b"]")
                self._logprobs.clear()
        elif item["type"] == "custom_tool_call":
            item["input"] = custom_input(grown)
        elif item["type"] == "tool_search_call":
            item["arguments"] = search_arguments(grown)
        else:
            item["arguments"] += grown

    @property
    def _part(self) -> Json:
        part: Json = self._items[-1]["content"][0]
        return part

    def _begin(self, kind: str, item: Json, part: Json | None) -> Iterator[Json]:
        yield from self._close("completed")
        self._open = kind
        self._items.append(item)
        yield self._event("response.output_item.added", output_index=len(self._items) - 1, item=_copy(item))
        if part is not None:
            item["content"].append(part)
            yield self._about("response.content_part.added", content_index=0, part=dict(part))

    def _close(self, status: str) -> Iterator[Json]:
        if not self._open:
            return
        self._join()
        item = self._items[-1]
        item["status"] = status
        if self._open == "message":
            text = {"text": self._part["text"], "logprobs": self._part["logprobs"]}
            yield self._about("response.output_text.done", content_index=0, **text)
        elif self._open == "reasoning":
            yield self._about("response.reasoning_text.done", content_index=0, text=self._part["text"])
        elif item["type"] == "function_call":
            call = {"name": item["name"], "arguments": item["arguments"]}
            yield self._about("response.function_call_arguments.done", **call)
        elif item["type"] == "custom_tool_call":  # the model writes it inside JSON, so it is known when that ends
            yield self._about("response.custom_tool_call_input.delta", delta=item["input"])
            yield self._about("response.custom_tool_call_input.done", input=item["input"])
        if "content" in item:
            yield self._about("response.content_part.done", content_index=0, part=self._part)
        yield self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)
        self._open = ""

    def _finish(self, finished: api.Finished) -> None:
        self.answer["usage"] = _usage(finished.usage)
        if self._include_timings:
            self.answer["usage"]["timings"] = timings([[finished.usage]])
        if finished.finish_reason == "stop":
            self.answer |= {"status": "completed", "completed_at": int(time.time())}
        elif finished.finish_reason == "abort":
            self.answer["status"] = "cancelled"
        else:
            self.answer |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}

    # ---- events

    def _about(self, type: str, **fields: Any) -> Json:
        """An event of the open item."""
        item = self._items[-1]
        return self._event(type, item_id=item["id"], output_index=len(self._items) - 1, **fields)

    def _whole(self, type: str) -> Json:
        return self._event(type, response=_copy(self.answer))

    def _event(self, type: str, **fields: Any) -> Json:
        self._sequence += 1
        return {"type": type, "sequence_number": self._sequence - 1, **fields}


def _beside(
    text: str, lagging: Sequence[api.TokenLogprobs], tokens: Sequence[api.TokenLogprobs]
) -> Sequence[api.TokenLogprobs]:
    """The tokens of a text that comes with `tokens`: those that wait and hold its beginning, too.

    Marks and white space beside them wait as well, and are no text. Where a text is not what its tokens say, parts of
    characters alone are taken to be its.
    """
    if not lagging:
        return tokens
    written = b"".join(entry.token_bytes for entry in (*lagging, *tokens))
    begin = written.rfind(text.encode())
    if begin < 0:
        return [*(entry for entry in lagging if NO_CHARACTER in entry.text), *tokens]
    ends = accumulate(len(entry.token_bytes) for entry in lagging)
    return [*(entry for entry, end in zip(lagging, ends, strict=True) if end > begin), *tokens]


def _copy(value: Json) -> Json:
    """A copy as it is now: lists inside go on growing."""
    return {name: list(entry) if isinstance(entry, list) else entry for name, entry in value.items()}


def _call_item(call: api.ToolCallDelta, tool: ClientTool) -> Json:
    """The item of a call that begins, as its client knows the tool."""
    if tool.kind == "tool_search":
        item: Json = {"type": "tool_search_call", "execution": "client", "arguments": {}}
    elif tool.kind == "custom":
        item = {"type": "custom_tool_call", "name": tool.name, "input": ""}
    else:
        item = {"type": "function_call", "name": tool.name, "arguments": ""}
    if tool.namespace:
        item["namespace"] = tool.namespace
    return item | {"id": new_id(PREFIXES[item["type"]]), "call_id": call.id, "status": "in_progress"}


def _head(payload: ResponseRequest, id: str, info: ServerInfo) -> Json:
    """The response before anything happened; fields that the request left out show their defaults."""
    return {
        "id": id,
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": bool(payload.background),
        "error": None,
        "incomplete_details": None,
        "instructions": payload.instructions,
        "max_output_tokens": payload.max_output_tokens,
        "max_tool_calls": payload.max_tool_calls,
        "metadata": payload.metadata or {},
        "model": payload.model or info.model_names[0],
        "output": [],
        "parallel_tool_calls": payload.parallel_tool_calls is not False,
        "previous_response_id": payload.previous_response_id,
        "prompt_cache_key": payload.prompt_cache_key,
        "reasoning": {"effort": payload.reasoning.effort if payload.reasoning is not None else None, "summary": None},
        "safety_identifier": payload.safety_identifier,
        "service_tier": "default",
        "store": payload.is_stored,
        "temperature": info.default_temperature if payload.temperature is None else payload.temperature,
        "text": {"format": (payload.text and payload.text.format) or {"type": "text"}},
        "tool_choice": payload.tool_choice or "auto",
        "tools": payload.tools or [],
        "top_logprobs": payload.top_logprobs or 0,
        "top_p": info.default_top_p if payload.top_p is None else payload.top_p,
        "truncation": payload.truncation or "disabled",
        "usage": None,
        "user": payload.user,
    }


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
