"""Hosts and origins over HTTP: pages of others may do nothing with this engine."""

import asyncio
import base64
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from guarded_server import USER, ask


def test_on_a_loopback_address_only_names_of_this_machine_are_answered(guarded):
    async def check(port, s):
        for host in ("localhost", "LOCALHOST:80", "127.0.0.1", f"127.0.0.1:{port}", "[::1]:1", "x.localhost"):
            assert (await ask(port, "/v1/models", key=USER, host=host)).status == 200, host
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[::2]"):
            assert (await ask(port, "/v1/models", key=USER, host=host)).status == 421, host
            assert (await ask(port, "/health", host=host)).status in (200, 503)  # a probe names what it likes

    guarded(check)


def test_a_list_of_hosts_is_the_whole_list(guarded):
    async def check(port, s):
        assert (await ask(port, "/v1/models", key=USER, host="llm.example:443")).status == 200
        assert (await ask(port, "/v1/models", key=USER, host="localhost")).status == 421

    guarded(check, allowed_hosts=("LLM.example",))


def test_pages_of_other_origins_are_refused_unless_listed(guarded):
    async def check(port, s):
        good, evil = "https://chat.example", "https://evil.example"
        answer = await ask(port, "/v1/models", key=USER, origin=good)
        assert (answer.status, answer.all("access-control-allow-origin")) == (200, [good])
        assert "origin" in answer.all("vary")
        refused = await ask(port, "/v1/models", origin=good)  # the page may read why
        assert (refused.status, refused.all("access-control-allow-origin")) == (401, [good])
        for origin in (evil, "null", f"{good}.evil.example", "http://chat.example"):
            answer = await ask(port, "/v1/models", key=USER, origin=origin)
            assert (answer.status, answer.all("access-control-allow-origin")) == (403, [])
        for own in ({"origin": "http://127.0.0.1"}, {"origin": evil, "sec_fetch_site": "same-origin"}):
            assert (await ask(port, "/v1/models", key=USER, **own)).status == 200

    guarded(check, allowed_origins=("https://chat.example/",))


def test_a_preflight_needs_no_key_but_a_listed_origin(guarded):
    async def check(port, s):
        asked = {"access_control_request_method": "POST", "access_control_request_headers": "authorization,x-stainless"}
        answer = await ask(port, "/v1/models", "OPTIONS", origin="https://chat.example", **asked)
        assert (answer.status, answer.all("access-control-allow-headers")) == (204, ["authorization,x-stainless"])
        assert answer.all("access-control-allow-credentials") == []
        assert (await ask(port, "/v1/models", "OPTIONS", origin="https://evil.example", **asked)).status == 403
        assert (await ask(port, "/v1/models", "OPTIONS", **asked)).status == 401

    guarded(check, allowed_origins=("https://chat.example",))


def test_no_foreign_page_acts_with_the_password_a_browser_remembers(guarded):
    basic = "Basic " + base64.b64encode(f"x:{USER}".encode()).decode()

    async def check(port, s):
        page = {"origin": "https://any.example"}
        assert (await ask(port, "/v1/models", key=USER, **page)).status == 200
        assert (await ask(port, "/v1/models", authorization=basic, **page)).status == 401
        assert (await ask(port, "/v1/models", authorization=basic)).status == 200

    guarded(check, allowed_origins=("*",))


def test_without_keys_everything_is_open_but_not_to_pages_of_others(serving):
    async def main():
        async with serving(http_port=0) as s:
            port = s.server.http_port
            assert (await ask(port, "/v1/models")).status == 200
            assert (await ask(port, "/v1/models", origin="https://evil.example")).status == 403
            assert (await ask(port, "/v1/models", host="rebound.example")).status == 421
            assert (await ask(port, "/v1/status")).status not in (401, 403)

    asyncio.run(main())
