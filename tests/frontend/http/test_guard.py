"""Who may come in over HTTP: keys, over real sockets and from the real table of routes."""

import asyncio
import base64
import json
import logging
import os
import sys
from pathlib import Path

import pytest
from starlette.routing import Route

from quire.frontend.http.app import all_routes
from quire.frontend.http.guard import ADMIN, EXEMPT
from quire.proto.api import RequestError
from quire.proto.client import AsyncClient

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from guarded_server import BOSS, USER, ask, raw
from parts.clock import GUARD

ODD = "canary-odd-key"


def routes_of(s) -> list[tuple[str, str]]:
    """Method and path of everything the real app would route."""
    found = [route for route in all_routes(s.server.context) if isinstance(route, Route)]
    return [(method, route.path.replace("{", "").replace("}", "")) for route in found for method in route.methods]


def test_every_route_but_health_needs_a_key(guarded):
    async def check(port, s):
        routes = routes_of(s)
        assert len(routes) > 10
        assert {"/health", "/v1/health", "/ping", "/live", "/ready"} == EXEMPT
        unknown = [("GET", "/no/such/path"), ("GET", "/docs"), ("TRACE", "/v1/models"), ("PUT", "/v1/models")]
        for method, path in [*routes, *unknown]:
            for key in (None, "wrong-key-1234", ""):
                answer = await ask(port, path, method, key)
                if path in EXEMPT:
                    assert answer.status in (200, 503), path
                    continue
                assert answer.status == 401, (method, path)
                assert answer.all("www-authenticate") == ["Bearer", 'Basic realm="quire", charset="UTF-8"']
                assert method == "HEAD" or b"a valid bearer key is needed" in answer.body

    guarded(check)


def test_a_refusal_at_the_door_has_the_shape_of_its_api(guarded):
    async def check(port, s):
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            error = json.loads((await ask(port, path, "POST", "wrong-key-1234")).body)
            assert (error["type"], error["error"]["type"]) == ("error", "authentication_error")
        error = json.loads((await ask(port, "/v1/messagesx", "POST", "wrong-key-1234")).body)
        assert (error.get("type"), error["error"]["code"]) == (None, "unauthenticated")

    guarded(check)


def test_what_reaches_everybodys_requests_needs_an_admin_key(guarded):
    async def check(port, s):
        assert {"/v1/requests", "/v1/status", "/v1/prefixes", "/slots"} == {*ADMIN}
        for method, path in routes_of(s):
            is_admin = path.startswith(ADMIN)
            assert ((await ask(port, path, method, USER)).status == 403) == is_admin, path
            assert (await ask(port, path, method, BOSS)).status not in (401, 403), path
        for path in ("/v1/status", "/v1/status/", "/v1/requests/x", "/v1/requests", "/v1/%73tatus", "/v1/status?x=1"):
            assert (await ask(port, path, key=USER)).status == 403, path

    guarded(check)


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("authorization", f"Bearer {USER}", 200),
        ("authorization", f"bearer {USER}", 200),
        ("authorization", USER, 401),
        ("authorization", f"Basic {USER}", 401),
        ("authorization", "Basic " + base64.b64encode(f"anyone:{USER}".encode()).decode(), 200),
        ("authorization", "Basic " + base64.b64encode(f"{USER}:".encode()).decode(), 401),
        ("authorization", "Basic ***", 401),
        ("x-api-key", USER, 200),
        ("x-api-key", USER[:-1], 401),
    ],
)
def test_a_key_comes_as_bearer_as_x_api_key_or_as_the_password_of_basic(guarded, header, value, status):
    async def check(port, s):
        assert (await ask(port, "/v1/models", **{header: value})).status == status

    guarded(check)


def test_two_credentials_are_none(guarded):
    async def check(port, s):
        head = f"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {USER}\r\n"
        assert (await raw(port, f"{head}\r\n".encode())).status == 200
        assert (await raw(port, f"{head}authorization: Bearer {USER}\r\n\r\n".encode())).status == 401

    guarded(check)


def test_metrics_are_open_where_the_operator_says_so_and_nothing_beside_them(guarded):
    async def check(port, s):
        assert (await ask(port, "/metrics")).status == 200
        assert (await ask(port, "/metrics", key="wrong-key-1234")).status == 200
        for path in (
            "/metrics/",
            "/metrics/x",
            "/Metrics",
            "//metrics",
            "/v1/metrics",
            "/v1/models",
            "/v1/status",
            "/",
        ):
            assert (await ask(port, path)).status == 401, path
        foreign = await raw(port, b"GET /metrics HTTP/1.1\r\nhost: evil.example\r\n\r\n")
        assert foreign.status == 421  # a page elsewhere had its own name resolve to this machine

    guarded(check, metrics_without_key=True)


LINES = [
    "GET http://localhost/v1/models HTTP/1.1",
    "GET http://x/health/../v1/models HTTP/1.1",
    "GET /health/../v1/models HTTP/1.1",
    "GET /%2e%2e/v1/models HTTP/1.1",
    "GET //health HTTP/1.1",
    "GET /health/ HTTP/1.1",
    "GET /health%00/../v1/models HTTP/1.1",
    "GET /%2Fhealth HTTP/1.1",
    "GET /HEALTH HTTP/1.1",
    "GET /v1/models?/health HTTP/1.1",
    "GET /v1/models#/health HTTP/1.1",
    "GET /v1/models;/health HTTP/1.1",
    "OPTIONS * HTTP/1.1",
    "OPTIONS /v1/models HTTP/1.1",
    "CONNECT localhost:80 HTTP/1.1",
    "GET /v1/models HTTP/1.0",
]
HOSTS = ["localhost", "localhost/health", "localhost:0/health?", "x@localhost", "/health"]


def test_no_spelling_of_path_or_host_gets_past_the_keys(guarded):
    async def check(port, s):
        for line in LINES:
            for host in HOSTS:
                answer = await raw(port, f"{line}\r\nhost: {host}\r\n\r\n".encode())
                assert answer.status in (400, 401, 405, 421), (line, host, answer)
                assert b'"data"' not in answer.body

    guarded(check)


def test_keys_replaced_while_it_runs_count_at_both_doors(guarded, keys):
    async def check(port, s):
        assert (await ask(port, "/v1/models", key=USER)).status == 200
        fresh = Path(f"{keys['api_key_file']}.new")
        fresh.write_text("fresh-key-1234")
        os.replace(fresh, str(keys["api_key_file"]))
        async with asyncio.timeout(GUARD):
            while (await ask(port, "/v1/models", key="fresh-key-1234")).status == 401:
                pass
        assert (await ask(port, "/v1/models", key=USER)).status == 401
        async with AsyncClient(s.target, "fresh-key-1234") as fresh_client, AsyncClient(s.target, USER) as old_client:
            assert await fresh_client.models()
            with pytest.raises(RequestError, match="a valid bearer key"):
                await old_client.models()

    guarded(check)


def test_every_answer_says_how_a_browser_must_take_it(guarded):
    async def check(port, s):
        for key in (USER, None):
            answer = await ask(port, "/v1/models", key=key)
            assert answer.all("x-content-type-options") == ["nosniff"]
            assert answer.all("referrer-policy") == ["no-referrer"]
            assert "frame-ancestors 'none'" in answer.all("content-security-policy")[0]

    guarded(check)


def test_neither_keys_nor_prompts_reach_the_log_or_an_error(guarded, caplog):
    """Bad requests of many kinds, with something secret wherever a client may put it."""
    prompt = "canary-prompt-in-body"
    paths = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/embeddings", "/v1/nothing"]
    bodies = [
        f'{{"model": "tiny", "prompt": "{prompt}", "max_tokens": -1}}',
        f'{{"model": "tiny", "prompt": "{prompt}", "{{": 1',
        f'{{"model": "tiny", "messages": [{{"role": "user", "content": "{prompt}"}}], "n": "x"}}',
        f'{{"model": "tiny", "prompt": ["{prompt}", 5]}}',
        f'["{prompt}"]',
    ]

    async def check(port, s):
        for path in paths:
            for body in bodies:
                for key in (USER, ODD, None):
                    answer = await ask(port, path, "POST", key, body=body, content_type="application/json")
                    assert answer.status >= 400 or path == "/tokenize"  # drops what it does not know
                    text = answer.body.decode() + str(answer.headers)
                    for secret in (USER, BOSS, ODD, prompt, "Traceback", "0x7f", "/frontend/", "quire."):
                        assert secret not in text, (path, body, text)

    with caplog.at_level(logging.INFO):
        guarded(check)
    for secret in (USER, BOSS, ODD, prompt):
        assert secret not in caplog.text
