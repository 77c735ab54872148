"""Bad input, rows B1 to B24, against a real engine over both doors: the right status and reason, a message that says
what to change, nothing of the server's inside in it, and the next request served.

What needs a broken part inside, or takes long, is proven at the frontend: bugs, slow bodies and readers.
"""

import contextlib
import re
import shutil
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from bounds import BOUNDS
from parts.clock import eventually
from said import ADMIN, KEY, Doors
from wire_rows import COMPLETIONS, OVER_GRPC, OVER_HTTP

from quire.proto.api import Chat, ChatMessage, Delta, GenerateRequest
from quire.proto.client import Client
from quire.proto.messages.errors import REASONS
from quire.proto.messages.params import Structured

POISON = 300
"""A token whose embedding is not a number."""
INSIDE = re.compile(r"0x7f|Traceback|File \"|\.py\b|quire\.(frontend|scheduler|proto)|/tmp/|canary|msgspec|<class")
USER = ChatMessage("user", "hi")


@pytest.fixture(scope="module")
def doors(serve, tiny_checkpoint, tmp_path_factory) -> Doors:
    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("poisoned")
    shutil.copytree(tiny_checkpoint("LlamaForCausalLM"), folder, dirs_exist_ok=True)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][POISON] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    for name, key in (("keys", KEY), ("admins", ADMIN)):
        (folder / name).write_text(f"{key}\n")
    # 20 blocks and more hold the context of 256; two run, two wait
    engine = serve(
        str(folder), "--served-model-name", "tiny", "--max-num-seqs", "2", "--max-num-queued-reqs", "2",
        "--max-body-bytes", "1MiB", "--api-key-file", str(folder / "keys"), "--admin-key-file", str(folder / "admins"),
    )  # fmt: skip
    engine.client = Client(engine.target, api_key=ADMIN)
    return Doors(engine)


@pytest.fixture(scope="module")
def slow_headers(doors: Doors) -> Iterator[socket.socket]:
    """A client that never ends its headers; the time it has passes while the other tests run."""
    with doors.connect() as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localh")
        yield connection


@pytest.fixture(autouse=True)
def unharmed(doors: Doors, slow_headers: socket.socket) -> Iterator[None]:
    """After every test both doors serve, and nothing of the inside was told."""
    doors.told.clear()
    yield
    if not doors.draining:
        good = GenerateRequest(input=[5, 6], max_tokens=2, temperature=0)
        assert doors.grpc(good).status == "OK"
        assert doors.http(good).status == 200
    for text in doors.told:
        assert not INSIDE.search(text), text


def row(name: str, reason: str, where: str, said: str, **fields: Any) -> Any:
    """`where`: the field's name in gRPC and, behind a blank, over HTTP when that is another."""
    return pytest.param(GenerateRequest(**{"input": (5, 6)} | fields), reason, where, said, id=name)


def grammar(kind: Any, text: str) -> dict[str, Any]:
    return {"structured": Structured(kind, text)}


@pytest.mark.parametrize(
    ("request_", "reason", "where", "said"),
    [
        row("B5-model", "UNKNOWN_MODEL", "model", "'gpt-9'", model="gpt-9"),
        row("B5-path-like", "UNKNOWN_MODEL", "model", r"'\.\./etcx{58}'", model="../etc" + "x" * 500),
        row("B5-adapter", "UNKNOWN_ADAPTER", "adapter", r"'\.\./a'", adapter="../a"),
        row("B7-text", "EMPTY_PROMPT", "prompt", "empty", input=""),
        row("B7-ids", "EMPTY_PROMPT", "prompt_token_ids prompt", "empty", input=()),
        row("B7-chat", "EMPTY_PROMPT", "chat.messages messages", "empty", input=Chat([])),
        row("B8-both", "CONTEXT_LENGTH_EXCEEDED", "max_tokens", "200 .*57 .*256", input=(5,) * 200, max_tokens=57),
        row("B8-prompt", "CONTEXT_LENGTH_EXCEEDED", "max_tokens", "300 .*256", input=(5,) * 300),
        row("B12-negative", "TOKEN_OUT_OF_RANGE", "prompt_token_ids prompt", "-1 at index 1 .*320", input=(5, -1)),
        row("B12-width", "TOKEN_OUT_OF_RANGE", "prompt_token_ids prompt", "320 at index 0 .*320", input=(320,)),
        row("B12-int64", "TOKEN_OUT_OF_RANGE", "prompt_token_ids prompt", "index 0 .*320", input=(2**63 - 1,)),
        row("B12-stop", "TOKEN_OUT_OF_RANGE", "stop_token_ids", "index 1 .*320", stop_token_ids=(5, 320)),
        row("B12-allowed", "TOKEN_OUT_OF_RANGE", "allowed_token_ids", "-5 .*320", allowed_token_ids=(-5,)),
        row("B12-bias", "TOKEN_OUT_OF_RANGE", "logit_bias", "99999 .*320", logit_bias={99999: 1.0}),
        row("B14-regex", "INVALID_GRAMMAR", "structured structured_outputs.regex", "unclosed", **grammar("regex", "(")),
        row("B14-limit", "INVALID_GRAMMAR", "structured structured_outputs.json", "compile limit 2 s",
            **grammar("json_schema", '{"type": "integer", "multipleOf": 1999993}')),
        row("B14-large", "INVALID_GRAMMAR", "structured structured_outputs.regex", "too many",
            **grammar("regex", "(a|aa){4000}(b|bb){4000}")),
        row("B14-schema", "INVALID_GRAMMAR", "structured structured_outputs.json", "type",
            **grammar("json_schema", '{"type": 1}')),
        row("B14-deep", "INVALID_GRAMMAR", "structured structured_outputs.json", "500 levels deep; at most 32",
            **grammar("json_schema", '{"a":' * 500 + "1" + "}" * 500)),
        row("B14-remote", "INVALID_GRAMMAR", "structured structured_outputs.json", "http://x/y",
            **grammar("json_schema", '{"$ref": "http://x/y"}')),
        row("B14-recursive", "INVALID_GRAMMAR", "structured structured_outputs.json", "allows no output",
            **grammar("json_schema", '{"$ref": "#"}')),
        row("B14-grammar", "INVALID_GRAMMAR", "structured structured_outputs.grammar", r"1\(6\): .*'='",
            **grammar("grammar", "root = 1")),
        row("B15-kwarg", "INVALID_PARAMETER", "chat.template_kwargs chat_template_kwargs", "must not hold 'messages'",
            input=Chat([USER], template_kwargs='{"messages": "x"}')),
        row("B16-policy", "UNSUPPORTED", "priority", "policy", priority=1),
        row("B18-negative", "INVALID_PARAMETER", "timeout_seconds", r"\(0, 3600\].*-1", timeout_seconds=-1.0),
        row("B18-cap", "INVALID_PARAMETER", "timeout_seconds", r"\(0, 3600\].*3601", timeout_seconds=3601.0),
        row("B18-past", "DEADLINE", "", "time-out", timeout_seconds=1e-6, max_tokens=200, ignore_eos=True),
        row("B23-not-a-number", "NUMERICAL", "", "not finite", input=(5, POISON, 6)),
    ],
)  # fmt: skip
def test_both_doors_refuse_for_the_same_reason_and_say_what_is_wrong(doors, request_, reason, where, said) -> None:
    ours, _, theirs = where.partition(" ")
    over_grpc, over_http = doors.grpc(request_), doors.http(request_)
    assert (over_grpc.status, over_grpc.reason, over_grpc.field) == (REASONS[reason].status, reason, ours)
    assert (over_http.status, over_http.reason, over_http.field) == (REASONS[reason].http, reason, theirs or ours)
    for refusal in (over_grpc, over_http):
        assert re.search(said, refusal.message), refusal.message


@pytest.mark.parametrize("name", BOUNDS, ids=lambda name: f"B10-{name}")
def test_every_bound_holds_at_both_doors(doors, name) -> None:
    at_bound, beyond, said = BOUNDS[name]
    sound = {
        "input": (5, 6),
        "seed": 1,
        "max_tokens": 16 if name == "min_tokens" else 1,
        "logit_bias": {POISON: -100.0},
    }
    sound |= {"logprobs": 0} if name == "logprob_token_ids" else {}
    changed = "input" if isinstance(at_bound, Chat) else name

    def asked(value: Any) -> GenerateRequest:
        return GenerateRequest(**sound | {changed: value})

    assert doors.grpc(asked(at_bound)).status == "OK"
    assert doors.http(asked(at_bound)).status == 200
    for value in beyond:
        over_grpc, over_http = doors.grpc(asked(value)), doors.http(asked(value))
        assert (over_grpc.status, over_http.status) == ("INVALID_ARGUMENT", 400), value
        assert over_grpc.reason == over_http.reason
        for refusal in (over_grpc, over_http):
            assert name in refusal.field
            assert re.search(said, refusal.message), refusal.message


@pytest.mark.parametrize(
    "name", ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "logit_bias"]
)
def test_b11_what_is_no_number_is_refused_by_field(doors, name) -> None:
    for value in (float("nan"), float("inf"), float("-inf"), 1e308, -1e308):
        asked = {5: value} if name == "logit_bias" else value
        refusal = doors.grpc(GenerateRequest(input=(5, 6), **{name: asked}))
        assert (refusal.status, refusal.reason, refusal.field) == ("INVALID_ARGUMENT", "INVALID_PARAMETER", name)
        assert "finite number in " in refusal.message
    for text in ("NaN", "Infinity", "1e999", "1e308", "true", '"1"'):
        value = f'{{"5": {text}}}' if name == "logit_bias" else text
        refusal = doors.send("/v1/completions", f'{{"prompt": [5, 6], "{name}": {value}}}'.encode())
        assert (refusal.status, refusal.reason) == (400, "INVALID_PARAMETER"), text
        assert refusal.field.startswith("body" if text in ("NaN", "Infinity") else name), text  # JSON has neither


@pytest.mark.parametrize(
    ("status", "reason", "said", "body", "path", "more"),
    OVER_HTTP,
)
def test_what_only_http_can_say_wrongly_is_refused(doors, status, reason, said, body, path, more) -> None:
    refusal = doors.send(path, body, **more)
    assert (refusal.status, refusal.reason) == (status, reason)
    assert re.search(said, refusal.message), refusal.message
    if status == 401:
        assert refusal.headers["www-authenticate"]
    if status == 405:
        assert refusal.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("status", "said", "message", "more"),
    OVER_GRPC,
)
def test_what_only_grpc_can_say_wrongly_is_refused(doors, status, said, message, more) -> None:
    refusal = doors.call(message, **more)
    assert refusal.status == status
    assert re.search(said, refusal.message), refusal.message


def test_b13_odd_text_is_text_and_special_tokens_are_never_read_from_it(doors) -> None:
    for text in ("a\0b", "<|endoftext|>" * 3, "e" + "\u0301" * 60, "\ufdd0 \U0010ffff"):
        ids = doors.client.tokenize(text).token_ids
        assert 0 not in ids[1:]
        asked = GenerateRequest(input=text, max_tokens=1)
        assert doors.grpc(asked).status == "OK"
        assert doors.http(asked).status == 200


def test_b17_a_label_may_be_used_twice_at_once(doors) -> None:
    asked = GenerateRequest(input=(5, 6), max_tokens=8, request_id="twin", temperature=0)
    streams = [doors.client.stream(asked) for _ in range(2)]
    assert doors.http(asked).status == 200
    told = ["".join(event.text for event in stream if isinstance(event, Delta)) for stream in streams]
    assert told[0] == told[1]


def test_b18_a_deadline_that_has_passed_is_exceeded(doors) -> None:
    assert doors.grpc(GenerateRequest(input=(5, 6)), seconds=1e-6).status == "DEADLINE_EXCEEDED"


LONG = GenerateRequest(input=(5, 6), max_tokens=250, ignore_eos=True, n=64, seed=1, allowed_token_ids=(5, 6))


def test_b19_and_b21_a_full_queue_names_its_limit_and_clients_that_leave_empty_it(doors) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(doors.begin(LONG))
        eventually(lambda: doors.engine.load().num_waiting >= 2)
        over_grpc, over_http = doors.grpc(LONG), doors.http(LONG)
        assert (over_grpc.status, over_http.status) == ("RESOURCE_EXHAUSTED", 429)
        for refusal in (over_grpc, over_http):
            assert refusal.reason == "QUEUE_FULL"
            assert re.search("at most 2 may", refusal.message), refusal.message
            assert float(refusal.headers["retry-after"]) > 0
    eventually(doors.engine.idle)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param("Content-Length: 2\r\nTransfer-Encoding: chunked", id="B24-both-lengths"),
        pytest.param("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", id="B24-two-codings"),
        pytest.param("Content-Length: 2\r\nHost: other", id="B24-two-hosts"),
        pytest.param("Content-Length: +2", id="B24-length"),
    ],
)
def test_what_two_servers_could_read_differently_is_refused(doors, lines) -> None:
    refusal = doors.raw(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n\r\n{{}}".encode())
    assert (refusal.status, refusal.reason, refusal.headers["connection"]) == (400, "BAD_REQUEST", "close")


def test_b22_headers_that_never_end_are_timed_out(doors, slow_headers) -> None:
    refusal = doors.read(slow_headers)
    assert (refusal.status, refusal.reason) == (408, "REQUEST_TIMEOUT")
    assert "10 s" in refusal.message


def test_b20_a_server_that_drains_says_so(doors) -> None:
    """The last test: the engine ends."""
    eventually(doors.engine.idle)  # what the test before asked for may still hold a block
    with doors.begin(LONG):
        eventually(lambda: not doors.engine.idle())
        doors.draining = True
        doors.engine.process.send_signal(signal.SIGTERM)
        asked = GenerateRequest(input=(5, 6), max_tokens=1)
        eventually(lambda: doors.grpc(asked, seconds=1).status == "UNAVAILABLE")
        refusal = doors.http(asked)
        assert (refusal.status, refusal.reason) == (503, "DRAINING")
        assert refusal.headers["retry-after"] == "1"
