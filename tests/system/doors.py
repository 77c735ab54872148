"""One request through either door: the same question asked over gRPC and over HTTP, the answers in one form."""

import http.client
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from parts.clock import GUARD

from quire.proto import api
from quire.proto.client import Client
from quire.proto.messages.params import MAX_N

FINISH = {"tool_calls": "stop"}
"""OpenAI has a word of its own for a stop after tool calls."""


class Nearly(float):
    """A logprob, equal to what it is when its prompt runs in other chunks, because its beginning is cached."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and math.isclose(self, other, rel_tol=0.0, abs_tol=1e-4)

    def __ne__(self, other: object) -> bool:
        return not self == other


Logprob = tuple[str, Nearly, tuple[tuple[str, Nearly], ...], bytes]


@dataclass
class Spoken:
    """One output. Logprobs are (token text, logprob, the likeliest, the token's bytes)."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)


@dataclass
class Verdict:
    """What a door said: a refusal's reason word (and the HTTP status it stands for), or the outputs."""

    reason: str = ""
    status: int = 200
    prompt_tokens: int = 0
    completion_tokens: int = 0
    outputs: list[Spoken] = field(default_factory=list)

    def __bool__(self) -> bool:
        return not self.reason


class GrpcDoor:
    def __init__(self, client: Client) -> None:
        self._client = client

    def ask(self, request: api.GenerateRequest) -> Verdict:
        try:
            made = self._client.generate(request)
        except api.RequestError as error:
            return refused(error)
        outputs = [
            Spoken(
                output.text,
                list(output.token_ids),
                output.finished.finish_reason,
                output.reasoning,
                [(call.name, call.arguments) for call in output.tool_calls],
                [_logprob(entry) for entry in output.logprobs],
            )
            for output in made.outputs
        ]
        completion = sum(output.finished.usage.completion_tokens for output in made.outputs)
        return Verdict(prompt_tokens=made.prompt_tokens, completion_tokens=completion, outputs=outputs)

    def stream(self, request: api.GenerateRequest) -> Verdict:
        verdict = Verdict(outputs=[Spoken() for _ in range(min(request.n or 1, MAX_N))])
        try:
            for event in self._client.stream(request):
                if isinstance(event, api.Started):
                    verdict.prompt_tokens = event.prompt_tokens
                elif isinstance(event, api.Delta):
                    output = verdict.outputs[event.output_index]
                    output.text += event.text
                    output.reasoning += event.reasoning
                    output.token_ids += event.token_ids
                    output.logprobs += [_logprob(entry) for entry in event.logprobs]
                    for call in event.tool_calls:
                        _extend(output.calls, call.index, call.name, call.arguments)
                elif isinstance(event, api.Finished):
                    verdict.outputs[event.output_index].finish = event.finish_reason
                    verdict.completion_tokens += event.usage.completion_tokens
        except api.RequestError as error:
            return refused(error)
        return verdict


class HttpDoor:
    """`address` is host:port."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, request: api.GenerateRequest) -> Verdict:
        path, body = json_request(request)
        status, answer = self.post(path, body)
        if status != 200:
            return Verdict(answer["error"]["code"].upper(), status)
        usage = answer["usage"]
        verdict = Verdict(prompt_tokens=usage["prompt_tokens"], completion_tokens=usage["completion_tokens"])
        for choice in sorted(answer["choices"], key=lambda choice: choice["index"]):
            spoken = Spoken()
            _add(spoken, choice, choice.get("message"))
            verdict.outputs.append(spoken)
        return verdict

    def stream(self, request: api.GenerateRequest) -> Verdict:
        path, body = json_request(request)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        verdict = Verdict(outputs=[Spoken() for _ in range(min(request.n or 1, MAX_N))])
        for item in self.items(path, body):
            if "error" in item:
                return Verdict(item["error"]["code"].upper(), item.get("status", 200))
            if item.get("usage"):
                verdict.prompt_tokens = item["usage"]["prompt_tokens"]
                verdict.completion_tokens = item["usage"]["completion_tokens"]
            for choice in item["choices"]:
                _add(verdict.outputs[choice["index"]], choice, choice.get("delta"))
        return verdict

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self._address, timeout=GUARD)
        try:
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request("POST", path, raw, {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def items(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """A refusal before the stream is one item with its status."""
        connection = http.client.HTTPConnection(self._address, timeout=GUARD)
        try:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                yield {**json.loads(response.read()), "status": response.status}
                return
            for line in response:
                if line.startswith(b"data: ") and line != b"data: [DONE]\n":
                    yield json.loads(line[6:])
        finally:
            connection.close()


def refused(error: api.RequestError) -> Verdict:
    from quire.proto.messages.errors import REASONS

    return Verdict(error.reason, REASONS[error.reason].http)


def json_request(request: api.GenerateRequest) -> tuple[str, dict[str, Any]]:
    """The path and the body that mean the same as `request`."""
    body: dict[str, Any] = {"return_token_ids": True}
    skipped = {"input", "structured", "logprobs", "return_token_ids", "return_prompt_token_ids"}
    for name, value in asdict(request).items():
        if name not in skipped and value is not None and value != () and value != {}:
            body[name] = value
    if request.structured is not None:
        kind, text = request.structured.kind, request.structured.text
        value = {"json_object": True, "json_schema": None, "structural_tag": None, "choice": None}.get(kind, text)
        name = "json" if kind == "json_schema" else kind
        body["structured_outputs"] = {name: json.loads(text) if value is None else value}
    if not isinstance(request.input, api.Chat):
        body["prompt"] = request.input
        if request.logprobs is not None:
            body["logprobs"] = request.logprobs
        return "/v1/completions", body
    if request.logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": request.logprobs}
    return "/v1/chat/completions", body | _chat(request.input)


def _chat(chat: api.Chat) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": [_turn(message) for message in chat.messages]}
    if chat.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description}
                | ({"parameters": json.loads(tool.parameters)} if tool.parameters else {}),
            }
            for tool in chat.tools
        ]
    choice = chat.tool_choice
    if choice is not None and choice.startswith("function:"):
        body["tool_choice"] = {"type": "function", "function": {"name": choice.removeprefix("function:")}}
    elif choice is not None:
        body["tool_choice"] = choice
    for name in ("parallel_tool_calls", "add_generation_prompt", "continue_final_message"):
        if getattr(chat, name) is not None:
            body[name] = getattr(chat, name)
    if chat.template_kwargs:
        body["chat_template_kwargs"] = json.loads(chat.template_kwargs)
    return body


def _turn(message: api.ChatMessage) -> dict[str, Any]:
    content = message.content
    parts = content if isinstance(content, str) else [{"type": "text", "text": part.text} for part in content]
    turn: dict[str, Any] = {"role": message.role, "content": parts}
    if message.tool_calls:
        turn["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        turn["tool_call_id"] = message.tool_call_id
    if message.name:
        turn["name"] = message.name
    if message.reasoning:
        turn["reasoning_content"] = message.reasoning
    return turn


def _add(spoken: Spoken, choice: dict[str, Any], message: dict[str, Any] | None) -> None:
    """A choice of an answer or of a chunk: both have the same parts."""
    spoken.token_ids += choice.get("token_ids") or []
    reason = choice.get("finish_reason")
    spoken.finish = FINISH.get(reason, reason) or spoken.finish
    logprobs = choice.get("logprobs") or {}
    if message is None:
        spoken.text += choice["text"]
        names = ("tokens", "token_logprobs", "top_logprobs", "bytes")
        for token, logprob, top, data in zip(*(logprobs.get(name, ()) for name in names), strict=True):
            spoken.logprobs.append(_position(token, logprob, top.items(), bytes(data)))
        return
    spoken.text += message.get("content") or ""
    spoken.reasoning += message.get("reasoning_content") or ""
    for position, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        _extend(spoken.calls, call.get("index", position), function.get("name") or "", function.get("arguments") or "")
    for entry in logprobs.get("content") or ():
        top = [(one["token"], one["logprob"]) for one in entry["top_logprobs"]]
        spoken.logprobs.append(_position(entry["token"], entry["logprob"], top, bytes(entry["bytes"])))


def _extend(calls: list[tuple[str, str]], index: int, name: str, arguments: str) -> None:
    while len(calls) <= index:
        calls.append(("", ""))
    calls[index] = (calls[index][0] + name, calls[index][1] + arguments)


def _logprob(entry: api.TokenLogprobs) -> Logprob:
    return _position(entry.text, entry.logprob, [(one.text, one.logprob) for one in entry.top], entry.token_bytes)


def _position(token: str, logprob: float, top: Iterable[tuple[str, float]], data: bytes) -> Logprob:
    """As legacy completions tell it: the chosen token is among the likeliest, and of one text the last counts."""
    shown = {text: Nearly(value) for text, value in top}
    shown.setdefault(token, Nearly(logprob))
    return token, Nearly(logprob), tuple(shown.items()), data
