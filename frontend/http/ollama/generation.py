"""The objects of one answer of `/api/chat` or `/api/generate`: those of a stream, or the whole one."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count

import msgspec

from quire.frontend.http.ollama.answer import Json, nanoseconds, now_text
from quire.frontend.http.openai.chat_answer import logprobs
from quire.proto import api

Shape = Callable[[str, str, Sequence[Json]], Json]
"""Text, reasoning and calls -> the fields of an object."""


def as_message(text: str, thinking: str, calls: Sequence[Json]) -> Json:
    """The shape of `/api/chat`."""
    message: Json = {"role": "assistant", "content": text}
    if thinking:
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = calls
    return {"message": message}


def as_response(text: str, thinking: str, calls: Sequence[Json]) -> Json:
    """The shape of `/api/generate`, which has no calls."""
    return {"response": text} | ({"thinking": thinking} if thinking else {})


class Answer:
    """`model`: the name as the client wrote it."""

    def __init__(self, model: str, shape: Shape) -> None:
        self._model = model
        self._shape = shape
        self._begin = time.monotonic()
        self._num_calls = 0
        self._newest: list[api.ToolCallDelta] = []
        """The newest call so far, which is not told."""

    def done(self, reason: str) -> Json:
        """The answer to a request that asks for nothing but the model."""
        return self.waiting() | {"done": True, "done_reason": reason}

    def waiting(self) -> Json:
        """An object without content."""
        return self._object("", "")

    def whole(self, generation: api.Generation) -> Json:
        (output,) = generation.outputs
        texts: list[str] = []
        calls: list[Json] = []
        indexes = count()
        for part in output.in_order:
            if isinstance(part, str):
                texts.append(part)
            elif isinstance(part, api.ToolCall):
                shown = _call(next(indexes), part)
                if shown is None:
                    texts.append(part.arguments)
                else:
                    calls.append(shown)
        return self._object("".join(texts), output.reasoning, calls, output.logprobs) | self._end(output.finished)

    def objects(self, event: api.Event) -> Iterator[Json]:
        """The objects of one event of a stream. A call comes as a whole, once all of it was written."""
        if isinstance(event, api.Delta):
            if event.text or event.reasoning:
                yield from self._last_call()
            if event.text or event.reasoning or event.logprobs:
                yield self._object(event.text, event.reasoning, (), event.logprobs)
            for delta in event.tool_calls:
                if delta.index == self._num_calls:
                    yield from self._last_call()
                    self._num_calls += 1
                self._newest.append(delta)
        elif isinstance(event, api.Finished):
            yield from self._last_call()
            yield self.waiting() | self._end(event)

    def _object(
        self, text: str, thinking: str, calls: Sequence[Json] = (), entries: Sequence[api.TokenLogprobs] = ()
    ) -> Json:
        made = {"model": self._model, "created_at": now_text()} | self._shape(text, thinking, calls) | {"done": False}
        return made | ({"logprobs": list(logprobs(entries))} if entries else {})

    def _last_call(self) -> Iterator[Json]:
        if not self._newest:
            return
        call = api.ToolCall(self._newest[0].id, self._newest[0].name, "".join(part.arguments for part in self._newest))
        self._newest.clear()
        shown = _call(self._num_calls - 1, call)
        yield self._object(call.arguments, "") if shown is None else self._object("", "", [shown])

    def _end(self, finished: api.Finished) -> Json:
        usage = finished.usage
        parts = usage.queue_seconds + usage.prefill_seconds + usage.decode_seconds
        return {
            "done": True,
            "done_reason": finished.finish_reason,
            # the scheduler's clock is read once a turn: a request that comes late in one has begun earlier there
            "total_duration": nanoseconds(max(time.monotonic() - self._begin, parts)),
            "load_duration": nanoseconds(usage.queue_seconds),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": nanoseconds(usage.prefill_seconds),
            "eval_count": usage.completion_tokens,
            "eval_duration": nanoseconds(usage.decode_seconds),
        }


def _call(index: int, call: api.ToolCall) -> Json | None:
    """The call as Ollama shows it; None where its arguments were cut off and are no object."""
    try:
        msgspec.json.decode(call.arguments or "{}", type=dict)
    except msgspec.DecodeError:
        return None
    arguments = msgspec.Raw(call.arguments.encode() or b"{}")
    return {"id": call.id, "function": {"index": index, "name": call.name, "arguments": arguments}}
