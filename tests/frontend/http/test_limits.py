"""Every bound of the HTTP server over real sockets: what is refused, with which status, and that connections close."""

import asyncio
import http.client
import json
from contextlib import suppress

import pytest
from parts.clock import GUARD

from quire.frontend.config import FrontendConfig

BODY = b'{"prompt": "x"}'


def post(*headers: bytes, target: bytes = b"/v1/completions", body: bytes = BODY, length: bool = True) -> bytes:
    lines = [b"POST " + target + b" HTTP/1.1", b"Host: localhost", b"Content-Type: application/json", *headers]
    if length:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*lines, b"", body])


CHUNKED = b"Transfer-Encoding: chunked"


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(post(CHUNKED), id="both lengths"),
        pytest.param(post(b"Content-Length: 3"), id="two lengths"),
        pytest.param(post(b"Content-Length: " + b"0" * 5000 + b"15", length=False), id="5000 digits"),
        pytest.param(post(b"Content-Length: +15", length=False), id="length with a sign"),
        pytest.param(post(CHUNKED, CHUNKED, length=False, body=b"0\r\n\r\n"), id="chunked twice"),
        pytest.param(post(b"Transfer-Encoding: gzip, chunked", length=False, body=b"0\r\n\r\n"), id="another coding"),
        pytest.param(post(b"Transfer-Encoding : chunked", length=False, body=b"0\r\n\r\n"), id="space before colon"),
        pytest.param(post(CHUNKED, length=False, body=b"5\r\nabcdefgh\r\n0\r\n\r\n"), id="chunk end that is none"),
        pytest.param(post(CHUNKED, length=False, body=b"3\nabc\n0\n\n"), id="chunks that end with LF"),
        pytest.param(post(CHUNKED, length=False, body=b"0x3\r\nabc\r\n0\r\n\r\n"), id="chunk size that is none"),
        pytest.param(post(CHUNKED, length=False, body=b"f\r\n" + BODY + b"\r\n0\r\nX: y\r\n\r\n"), id="trailers"),
        pytest.param(post(target=b"http://a/v1/completions"), id="absolute form"),
        pytest.param(post(target=b"*"), id="asterisk form"),
        pytest.param(post(b"Host: b"), id="two hosts"),
        pytest.param(post(b"X: a\r\n folded"), id="folded header"),
        pytest.param(post(b"X: a\x00b"), id="NUL in a header"),
        pytest.param(b"GET /health HTTP/1.1\r\n\r\n", id="no host"),
        pytest.param(b"GET /health HTTP/1.1\r\nHost: a b\r\n\r\n", id="host with a space"),
        pytest.param(b"GET /health HTTP/1.1\nHost: a\n\n", id="lines that end with LF"),
        pytest.param(b"GET /health HTTP/2.7\r\nHost: a\r\n\r\n", id="another version"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00", id="TLS"),
    ],
)
def test_what_two_servers_could_read_differently_is_400_and_closes(web, request_bytes):
    async def main():
        async with web(wait=False, allowed_hosts=("*",)) as w:
            answer = await w.raw(request_bytes)
            assert (answer.status, answer.error["code"]) == (400, "bad_request")
            assert answer.headers["connection"] == "close"
            assert not w.scheduler.submits

    asyncio.run(main())


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([post(b"X: " + b"a" * 40_000)], id="in one piece"),
        pytest.param([b"GET / HTTP/1.1\r\nX: ", *[b"a" * 4096] * 10], id="never complete"),
        pytest.param([b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n"], id="in the path"),
        pytest.param([post(*[b"X%d: y" % index for index in range(101)])], id="too many"),
    ],
)
def test_headers_over_the_limit_are_431(web, pieces):
    async def main():
        async with web(wait=False) as w:
            answer = await w.raw(*pieces)
            assert (answer.status, answer.error["code"]) == (431, "headers_too_large")

    asyncio.run(main())


def test_slow_headers_are_408_and_an_idle_connection_is_closed_without_a_word(web):
    async def main():
        async with web(wait=False, header_seconds=0.1, keep_alive_seconds=0.2) as w:
            slow = await w.raw(b"GET /health HTTP/1.1\r\nHos")
            assert (slow.status, slow.error["code"]) == (408, "request_timeout")
            reader, writer = await w.connect()
            async with asyncio.timeout(GUARD):
                assert await reader.read() == b""
            writer.close()

    asyncio.run(main())


def test_an_idle_connection_is_kept_for_longer_than_clients_and_balancers_keep_theirs():
    """What they say of themselves, in seconds: who closes first must be the one that would send the next request."""
    kept = {"Go's http.Transport": 90, "AWS ALB": 60, "nginx": 75, "Azure": 240, "Google Cloud": 600}
    config = FrontendConfig(scheduler_address="ipc://x", model="m", served_model_names=("m",))
    assert config.keep_alive_seconds > max(kept.values())


def test_a_body_that_stalls_is_408(web):
    async def main():
        async with web(wait=False, header_seconds=0.1) as w:
            answer = await w.raw(post(b"Content-Length: 15", body=BODY[:5], length=False))
            assert (answer.status, answer.error["code"]) == (408, "request_timeout")

    asyncio.run(main())


def test_a_body_over_the_limit_is_413_whether_its_length_is_said_or_not(web):
    async def main():
        async with web(wait=False, max_receive_bytes=1000) as w:
            text = json.dumps({"prompt": "x" * 5000}).encode()
            said = await w.client.post("/v1/completions", content=text, headers={"content-type": "application/json"})
            assert (said.status_code, said.json()["error"]["code"]) == (413, "body_too_large")
            assert "1000 bytes" in said.json()["error"]["message"]

            async def pieces():
                for _ in range(5):
                    yield text[:1000]

            unsaid = await w.client.post(
                "/v1/completions", content=pieces(), headers={"content-type": "application/json"}
            )
            assert unsaid.status_code == 413

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/v1/messages", "/api/embed", "/nowhere", "/health"])
def test_a_client_that_sends_all_before_it_reads_sees_why_its_body_was_not_taken(path, web):
    """urllib does, and asks for an end of the connection: megabytes are on their way when the answer is."""
    status = {"/nowhere": 404, "/health": 405}.get(path, 413)

    async def main():
        async with web(wait=False) as w:

            def ask():
                connection = http.client.HTTPConnection(w.client.base_url.netloc.decode(), timeout=GUARD)
                headers = {"content-type": "application/json", "connection": "close"}
                connection.request("POST", path, json.dumps({"input": "a" * (10 << 20)}), headers)
                answer = connection.getresponse()
                return answer.status, answer.read()

            found, text = await asyncio.to_thread(ask)
            assert found == status
            assert (b"8388608 bytes; send it in parts" in text) == (status == 413)

    asyncio.run(main())


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/json; charset=latin-1"},
        {"content-type": "application/json", "content-encoding": "gzip"},
        {},
    ],
)
def test_only_plain_json_is_taken(web, headers):
    async def main():
        async with web(wait=False) as w:
            response = await w.client.post("/v1/completions", content=BODY, headers=headers)
            assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_media_type")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", "body"),
        (b"[]", "body"),
        (b'{"prompt": "x", "prompt": "y"}', "prompt"),
        (b'{"prompt": "x", "metadata": {"a": 1, "a": 2}}', "a"),
        (b'{"prompt": "x", "top_p": NaN}', "body"),
        (b'{"prompt": "x", "top_p": 1e999}', "top_p"),
        (b'{"prompt": "\xff"}', "body"),
        (b'{"prompt": "x", "guided_json": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "body"),
        (b'{"prompt": "x", "stop": ["a", 3]}', "stop[1]"),
        (b"{}", "prompt"),
    ],
)
def test_malformed_json_is_400_and_says_where(web, body, param):
    async def main():
        async with web(wait=False) as w:
            headers = {"content-type": "application/json"}
            response = await w.client.post("/v1/completions", content=body, headers=headers)
            assert (response.status_code, response.json()["error"]["param"]) == (400, param)

    asyncio.run(main())


def test_unknown_paths_are_404_and_wrong_verbs_405_in_the_same_shape(web):
    async def main():
        async with web(wait=False) as w:
            unknown = await w.client.get("/v1/nothing")
            assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")
            wrong = await w.client.get("/v1/completions")
            assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
            assert wrong.headers["allow"] == "POST"
            assert (await w.client.request("BREW", "/health")).status_code in (400, 405)

    asyncio.run(main())


@pytest.mark.parametrize("label", ["a b", "x" * 129, "é"])
def test_a_request_id_that_does_not_fit_is_refused(web, label):
    async def main():
        async with web(wait=False) as w:
            response = await w.client.get("/version", headers={b"x-request-id": label.encode()})
            assert (response.status_code, response.json()["error"]["param"]) == (400, "x-request-id")

    asyncio.run(main())


def test_an_offer_of_http_2_is_passed_over_and_the_connection_stays_usable(web):
    async def main():
        async with web() as w:
            w.answers([70])
            reader, writer = await w.connect()
            for _ in range(2):
                writer.write(post(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk"))
                async with asyncio.timeout(GUARD):
                    head = await reader.readuntil(b"\r\n\r\n")
                    assert head.startswith(b"HTTP/1.1 200")
                    size = int(next(line for line in head.split(b"\r\n") if b"content-length" in line).split()[1])
                    await reader.readexactly(size)
            writer.close()

    asyncio.run(main())


def test_a_pipelined_request_is_not_served_and_the_connection_closes_after_the_first_answer(web):
    async def main():
        async with web() as w:
            w.answers([70])
            answer = await w.raw(post() + post())
            assert answer.status == 200
            assert answer.headers["connection"] == "close"
            assert answer.body.count(b"text_completion") == 1
            assert len(w.scheduler.submits) == 1

    asyncio.run(main())


def test_connections_beyond_the_bound_are_503_while_all_are_busy(web):
    async def main():
        async with web(max_connections=3) as w:  # one of them is gRPC's
            busy = [await w.connect(), await w.connect()]
            for _, writer in busy:
                writer.write(post())
            await w.scheduler.submitted(2)
            answer = await w.raw(b"")
            assert (answer.status, answer.error["code"]) == (503, "too_many_connections")
            assert answer.headers["retry-after"] == "1"
            for submit in w.scheduler.submits:
                w.scheduler.answer(submit.number, [70])
            for reader, writer in busy:
                async with asyncio.timeout(GUARD):
                    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
                writer.close()

    asyncio.run(main())


VERSION = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("opening", [b"", VERSION[:-8], VERSION], ids=["silent", "half a head", "answered"])
def test_the_connection_that_was_silent_longest_makes_room(web, opening):
    async def main():
        async with web(wait=False, max_connections=4) as w:
            silent = [await w.connect() for _ in range(3)]
            for _, writer in silent:
                writer.write(opening)
                await asyncio.sleep(0.05)
            probe = await w.connect()
            probe[1].write(VERSION)
            async with asyncio.timeout(GUARD):
                assert (await probe[0].readline()).startswith(b"HTTP/1.1 200")
                with suppress(ConnectionResetError):
                    await silent[0][0].read()
            assert not silent[2][0].at_eof()
            assert w.server.scheduler._metrics._counts["connections_closed_total", (("door", "http"),)] == 1
            for _, writer in (*silent, probe):
                writer.close()

    asyncio.run(main())


def test_a_bug_tells_an_opaque_id_and_nothing_else(web, monkeypatch, caplog):
    async def main():
        async with web() as w:

            def broken() -> None:
                raise KeyError("/secret/path")

            monkeypatch.setattr(w.server.context.engine_info, "models", broken)
            response = await w.client.get("/v1/models")
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["type"]) == (500, "bug", "server_error")
            assert "secret" not in response.text
            assert error["message"].removeprefix("internal error ") in caplog.text

    asyncio.run(main())
