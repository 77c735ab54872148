"""Bad requests that only one of the two protocols can say, with what must be answered."""

import json
from typing import Any

import pytest
from said import KEY

from quire.proto.generated import quire_pb2 as pb

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"


def http_row(
    name: str, status: int, reason: str, said: str, body: bytes | None, path: str = COMPLETIONS, **more: str
) -> Any:
    return pytest.param(status, reason, said, body, path, more, id=name)


OVER_HTTP = [
    http_row("B1-json", 400, "INVALID_PARAMETER", r"body: .*\(byte 17\)|truncated", b'{"prompt": "x",'),
    http_row("B1-garbage", 400, "INVALID_PARAMETER", r"body: .*byte 0", b"\x80\x04\x95"),
    http_row("B1-type", 400, "INVALID_PARAMETER", r"stop\[1\]: expected `str`",
             b'{"prompt": "x", "stop": ["a", 3]}'),
    http_row("B1-twice", 400, "INVALID_PARAMETER", "prompt: .*twice", b'{"prompt": "x", "prompt": "y"}'),
    http_row("B1-unknown", 400, "UNKNOWN_FIELD", "topp: .*unknown", b'{"prompt": "x", "topp": 1}'),
    http_row("B1-elsewhere", 400, "UNSUPPORTED", "typical_p: .*remove it", b'{"prompt": "x", "typical_p": 0.9}'),
    http_row("B1-deep", 400, "INVALID_PARAMETER", "body: .*deep",
             b'{"prompt": "x", "guided_json": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    http_row("B1-alias", 400, "INVALID_PARAMETER", "n_predict: is 3, but max_tokens is 4; set only one",
             b'{"prompt": "x", "n_predict": 3, "max_tokens": 4}'),
    http_row("B2-body", 413, "BODY_TOO_LARGE", "1048576 bytes", b"x" * (1 << 20) + b"x"),
    http_row("B2-header", 431, "HEADERS_TOO_LARGE", "32768 bytes", b"{}", x="y" * 40_000),
    http_row("B3-gzip", 415, "UNSUPPORTED_MEDIA_TYPE", "compressed", b"{}", content_encoding="gzip"),
    http_row("B3-type", 415, "UNSUPPORTED_MEDIA_TYPE", "application/json", b"{}", content_type="text/plain"),
    http_row("B4-none", 401, "UNAUTHENTICATED", "^a valid bearer key is needed$", b"{}", authorization=""),
    http_row("B4-wrong", 401, "UNAUTHENTICATED", "^a valid bearer key is needed$", b"{}",
             authorization="Bearer no"),
    http_row("B4-prefix", 401, "UNAUTHENTICATED", "^a valid bearer key is needed$", b"{}",
             authorization=f"Bearer {KEY}x"),
    http_row("B4-user", 403, "PERMISSION_DENIED", "admin key", None, "/v1/status", method="GET"),
    http_row("B6-path", 404, "NOT_FOUND", "no such path", b"{}", "/v1/nothing"),
    http_row("B6-audio", 404, "NOT_FOUND", "not served here: .*text only", b"{}", "/v1/audio/speech"),
    http_row("B6-sleep", 404, "NOT_FOUND", "/sleep is not served here: .*SIGTERM", b"{}", "/sleep"),
    http_row("B6-prefix", 404, "NOT_FOUND", "did you mean /v1/completions", b"{}", "/v1/v1/completions"),
    http_row("B6-verb", 405, "METHOD_NOT_ALLOWED", "method", None, method="DELETE"),
    http_row("B7-messages", 400, "EMPTY_PROMPT", "messages: ", b'{"messages": []}', CHAT),
    http_row("B10-outputs", 400, "INVALID_PARAMETER", "prompt: 65 prompts with 2 .*128",
             json.dumps({"prompt": ["x"] * 65, "n": 2}).encode()),
    http_row("B13-utf8", 400, "INVALID_PARAMETER", "body: is not valid UTF-8 at byte 12", b'{"prompt": "\xff"}'),
    http_row("B13-surrogate", 400, "INVALID_PARAMETER", r"prompt: holds .*ud800 at byte 12 .*both halves, or .*ufffd",
             b'{"prompt": "\\ud800"}'),
    http_row("B14-size", 400, "INVALID_GRAMMAR", "guided_regex: .*65537 bytes; at most 65536",
             json.dumps({"prompt": "x", "guided_regex": "x" * 65_537}).encode()),
    http_row("B14-unique", 400, "INVALID_GRAMMAR", "#/uniqueItems: .*make the items an enum, or leave",
             b'{"prompt": "x", "guided_json": {"uniqueItems": true, "items": {"type": "string"}}}'),
    http_row("B15-template", 400, "UNSUPPORTED", "chat_template: ",
             b'{"messages": [{"role": "user", "content": "x"}], "chat_template": "{{ x }}"}', CHAT),
    http_row("B16-suffix", 400, "UNSUPPORTED", "suffix: .*fill-in-the-middle tokens.*alone",
             b'{"prompt": "x", "suffix": "y"}'),
    http_row("B16-audio", 400, "UNSUPPORTED", "audio: ",
             b'{"messages": [{"role": "user", "content": "x"}], "audio": {}}', CHAT),
    http_row("B16-conversation", 400, "UNSUPPORTED", "conversation: .*previous_response_id",
             b'{"input": "x", "conversation": "conv_1"}', RESPONSES),
    http_row("B16-tool", 400, "UNSUPPORTED", r"tools\[0\].type: 'weather' .*use 'function', 'custom'",
             b'{"input": "x", "tools": [{"type": "weather"}]}', RESPONSES),
    http_row("B16-name", 400, "INVALID_PARAMETER", r"name: must be 1 to 128 letters, .* got 'a b'; rename the function",
             b'{"messages": [{"role": "user", "content": "x"}],'
             b' "tools": [{"type": "function", "function": {"name": "a b"}}]}', CHAT),
    http_row("B16-compact", 400, "UNSUPPORTED", "not compacted here; ask /v1/responses for a summary",
             b'{"input": "x"}', f"{RESPONSES}/compact"),
    http_row("B16-item", 400, "INVALID_PARAMETER", r"input\[0\].id: 'msg_1' is not stored .*send the item itself",
             b'{"input": [{"type": "item_reference", "id": "msg_1"}]}', RESPONSES),
]  # fmt: skip

SMALL = pb.GenerateRequest(prompt="x", max_tokens=1).SerializeToString()
LARGE = pb.GenerateRequest(prompt="x" * (1 << 20)).SerializeToString()
UNKNOWN = pb.GenerateRequest(chat=pb.Chat()).SerializeToString() + b"\xc2\x3e\x01x"
OVER_GRPC = [
    pytest.param("INVALID_ARGUMENT", "malformed protobuf", b"\xff\xff\xff", {}, id="B1-bytes"),
    pytest.param("INVALID_ARGUMENT", "malformed protobuf|field number 64", b"\x80\x04\x95", {}, id="B1-pickle"),
    pytest.param("INVALID_ARGUMENT", "1000.*unknown", UNKNOWN, {}, id="B1-field"),
    pytest.param("RESOURCE_EXHAUSTED", "1048576", LARGE, {}, id="B2-message"),
    pytest.param("RESOURCE_EXHAUSTED", "32768", SMALL, {"metadata": (("x", "y" * 40_000),)}, id="B2-metadata"),
    pytest.param("RESOURCE_EXHAUSTED", "larger than max", LARGE, {"gzip": True}, id="B3-gzip"),
    pytest.param("UNAUTHENTICATED", "^a valid bearer key is needed$", SMALL, {"key": None}, id="B4-none"),
    pytest.param("UNAUTHENTICATED", "^a valid bearer key is needed$", SMALL, {"key": KEY + "x"}, id="B4-wrong"),
    pytest.param("PERMISSION_DENIED", "admin", b"", {"method": "/quire.v1.Control/GetStatus"}, id="B4-user"),
    pytest.param("UNIMPLEMENTED", "", b"", {"method": "/quire.v1.Inference/Nothing"}, id="B6-method"),
    pytest.param("INVALID_ARGUMENT", "malformed protobuf", b"\x0a\x02\xff\xfe", {}, id="B13-utf8"),
    pytest.param("INVALID_ARGUMENT", "malformed protobuf", b"\x0a\x03\xed\xa0\x80", {}, id="B13-surrogate"),
]
