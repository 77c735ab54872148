"""Answers of `/v1/chat/completions`: the whole one, and the chunks of a stream."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from quire.frontend.http.answer import json_list, timings, usage_block
from quire.frontend.http.openai.chat_types import ChatRequest
from quire.frontend.http.openai.legacy_logprobs import prompt_logprobs
from quire.proto import api
from quire.proto.messages.message import Usage

Json = dict[str, Any]


class ChatAnswer:
    """The answer to one request. Fields beyond OpenAI's (`reasoning_content`, `stop_reason`, ...) are vLLM's."""

    def __init__(
        self,
        request: ChatRequest,
        label: str,
        fingerprint: str,
        stop_reason: Callable[[api.Finished], str | int | None],
        include_timings: bool,
    ) -> None:
        self._request = request
        self._include_timings = include_timings
        self._stop_reason = stop_reason
        self._head: Json = {
            "id": f"chatcmpl-{label}",
            "object": "chat.completion.chunk" if request.stream else "chat.completion",
            "created": int(time.time()),
            "model": "",
            "system_fingerprint": fingerprint,
        }
        self._prompt_tokens = 0
        self._roles: set[int] = set()
        self._called: set[int] = set()
        self._completion_tokens: dict[int, int] = {}
        self._usages: list[Usage] = []
        self._reasoning: defaultdict[int, list[str]] = defaultdict(list)
        """Pieces of each output's reasoning so far."""

    @property
    def reasoning(self) -> str:
        """The reasoning of a stream so far, of one output after the other, however they came."""
        return "".join(piece for _, pieces in sorted(self._reasoning.items()) for piece in pieces)

    def whole(self, generation: api.Generation, reasoning_tokens: int) -> Json:
        """The answer to a request that does not stream."""
        self._usages += [output.finished.usage for output in generation.outputs]
        answer = self._head | {
            "model": generation.model,
            "choices": [self._choice(index, output) for index, output in enumerate(generation.outputs)],
        }
        if self._request.prompt_logprobs is not None:
            answer["prompt_logprobs"] = json_list(prompt_logprobs(generation.prompt_logprobs))
        if self._request.return_token_ids:
            answer["prompt_token_ids"] = list(generation.prompt_token_ids)
        return answer | {"usage": self.usage(reasoning_tokens)}

    def chunks(self, event: api.Event) -> Iterator[Json]:
        """The chunks of one event: the role first, then what was generated, then the end of its output."""
        if isinstance(event, api.Started):
            self._head["model"] = event.model
            self._prompt_tokens = event.prompt_tokens
            for index in range(self._request.n or 1):
                first = self._chunk(index, {"role": "assistant", "content": ""})
                if self._request.return_token_ids:
                    first["prompt_token_ids"] = list(event.prompt_token_ids)
                yield first
        elif isinstance(event, api.PromptLogprobs):
            shown = prompt_logprobs(event.entries)
            yield self._head | {"choices": [], "prompt_logprobs": list(shown)[event.first_position != 1 :]}
        elif isinstance(event, api.Delta):
            grown = _delta(event, self._request.functions is not None)
            if event.reasoning:
                self._reasoning[event.output_index].append(event.reasoning)
            if event.tool_calls:
                self._called.add(event.output_index)
            count = self._completion_tokens.get(event.output_index, 0) + len(event.token_ids)
            self._completion_tokens[event.output_index] = count
            if grown or event.logprobs or (self._request.return_token_ids and event.token_ids):
                yield self._chunk(event.output_index, grown, event.logprobs, event.token_ids)
        else:
            index = event.output_index
            self._usages.append(event.usage)
            self._completion_tokens[index] = event.usage.completion_tokens
            ended = self._chunk(index, {})
            ended["choices"][0] |= self._end(event, index in self._called)
            yield ended

    def usage(self, reasoning_tokens: int) -> Json:
        """The usage of all outputs, once they have ended."""
        block: Json = msgspec.to_builtins(usage_block(self._usages))
        if reasoning_tokens:
            block["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
        if self._include_timings:
            block["timings"] = timings([self._usages])
        return block

    def usage_chunk(self, reasoning_tokens: int) -> Json:
        """The last chunk, for requests with `include_usage`."""
        return self._head | {"choices": [], "usage": self.usage(reasoning_tokens)}

    def _chunk(
        self, index: int, delta: Json, entries: Sequence[api.TokenLogprobs] = (), token_ids: Sequence[int] = ()
    ) -> Json:
        request = self._request
        as_ids = bool(request.return_tokens_as_token_ids)
        choice: Json = {
            "index": index,
            "delta": delta,
            "logprobs": {"content": list(logprobs(entries, as_ids))} if entries else None,
            "finish_reason": None,
        }
        if request.return_token_ids and token_ids:
            choice["token_ids"] = list(token_ids)
        chunk = self._head | {"choices": [choice]}
        if request.usage_always:
            chunk["usage"] = _counts(self._prompt_tokens, sum(self._completion_tokens.values()))
        elif request.usage_at_end:
            chunk["usage"] = None
        return chunk

    def _choice(self, index: int, output: api.Output) -> Json:
        request = self._request
        message: Json = {"role": "assistant", "content": output.text if output.text or not output.tool_calls else None}
        if output.reasoning:
            message |= {"reasoning_content": output.reasoning, "reasoning": output.reasoning}
        if output.tool_calls:
            message |= _calls(output.tool_calls, request.functions is not None)
        as_ids = bool(request.return_tokens_as_token_ids)
        shown = {"content": json_list(logprobs(output.logprobs, as_ids))} if request.logprobs else None
        choice = {"index": index, "message": message, "logprobs": shown}
        if request.return_token_ids:
            choice["token_ids"] = list(output.token_ids)
        return choice | self._end(output.finished, bool(output.tool_calls))

    def _end(self, finished: api.Finished, called: bool) -> Json:
        """The last fields of an output, with its error where it failed while others did not."""
        word: str = finished.finish_reason
        if word == "stop" and called:
            word = "tool_calls" if self._request.functions is None else "function_call"
        end: Json = {"finish_reason": word, "stop_reason": self._stop_reason(finished)}
        if finished.error is not None:
            end["error"] = {"code": finished.error.reason.lower(), "message": finished.error.message}
        return end


def _calls(calls: Sequence[api.ToolCall], as_function: bool) -> Json:
    """`as_function`: the one call, for a request that says `functions`."""
    functions: list[Json] = [{"name": call.name, "arguments": call.arguments} for call in calls]
    if as_function:
        return {"function_call": functions[0]}
    ids = [call.id for call in calls]
    return {
        "tool_calls": [{"id": id, "type": "function", "function": one} for id, one in zip(ids, functions, strict=True)]
    }


def _delta(event: api.Delta, as_function: bool) -> Json:
    delta: Json = {}
    if event.reasoning:
        delta |= {"reasoning_content": event.reasoning, "reasoning": event.reasoning}
    if event.text:
        delta["content"] = event.text
    if event.tool_calls:
        calls = [_call_delta(call) for call in event.tool_calls]
        delta |= {"function_call": calls[0]["function"]} if as_function else {"tool_calls": calls}
    return delta


def _call_delta(call: api.ToolCallDelta) -> Json:
    function: Json = {"arguments": call.arguments}
    if not call.name:
        return {"index": call.index, "function": function}
    return {"index": call.index, "id": call.id, "type": "function", "function": {"name": call.name} | function}


def _counts(prompt_tokens: int, completion_tokens: int) -> Json:
    total = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}


def logprobs(entries: Iterable[api.TokenLogprobs], as_ids: bool = False) -> Iterator[Json]:
    """The `content` of OpenAI's `logprobs`. `as_ids`: tokens show as `token_id:N`."""
    for entry in entries:
        top = [_token(one, as_ids) for one in (*entry.top, *entry.named)]
        yield _token(entry, as_ids) | {"top_logprobs": top}


def _token(one: api.TokenLogprobs | api.Candidate, as_ids: bool) -> Json:
    shown = f"token_id:{one.token_id}" if as_ids else one.text
    return {"token": shown, "logprob": one.logprob, "bytes": list(one.token_bytes)}
