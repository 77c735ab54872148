"""/health, /live, /ready, /ping and gRPC's health; /version, /load, /v1/models, /tokenize and /detokenize."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.frontend import health
from quire.frontend.stream import step_progress
from quire.proto.api import RequestError

SERVING = health_pb2.HealthCheckResponse.SERVING
UP = {"/health", "/v1/health", "/ping"}
READY = {"/ready", "", "quire.v1.Inference", "quire.v1.Control"}
LIVE = {"/live", "liveness"}
ENGINE = {"scheduler", "workers"}
STATES = {
    "ready": UP | READY | LIVE | ENGINE,
    "draining": UP | LIVE | ENGINE,
    "recovering": UP | LIVE | {"scheduler"},
    "starting": UP | LIVE | {"scheduler"},  # again
    "stalled": UP | LIVE | {"scheduler"},
    "lost": UP | LIVE,
    "failed": set(),
}
"""What a probe answers well, by path over HTTP and by service over gRPC, of an engine that was ready before."""


class Probes:
    """All probes of one frontend, over both APIs."""

    def __init__(self, w, channel: grpc.aio.Channel) -> None:
        self._w = w
        self._stub = health_pb2_grpc.HealthStub(channel)

    async def good(self) -> tuple[set[str], set[str]]:
        """Those that answer well, and the words of all that have one."""
        listed = (await self._stub.List(health_pb2.HealthListRequest())).statuses
        good, words = {name for name, one in listed.items() if one.status == SERVING}, set()
        for name, one in listed.items():
            assert (await self._stub.Check(health_pb2.HealthCheckRequest(service=name))).status == one.status
        for path in ("/health", "/v1/health", "/ping", "/ready", "/live"):
            response = await self._w.client.get(path)
            assert response.status_code in (200, 503)
            good |= {path} if response.status_code == 200 else set()
            words.add(response.json()["status"])
            assert set(response.json()) == {"status"}  # no key was asked for, and what went wrong names files
        return good, words

    def watch(self, service: str) -> grpc.aio.UnaryStreamCall:
        return self._stub.Watch(health_pb2.HealthCheckRequest(service=service))


@asynccontextmanager
async def probing(web, **config: object) -> AsyncIterator[tuple[Any, Probes]]:
    async with web(**config) as w, grpc.aio.insecure_channel(w.serving.target) as channel:
        yield w, Probes(w, channel)


def test_every_probe_of_both_apis_follows_the_engines_state(web):
    async def main():
        async with probing(web) as (w, probes):
            assert await probes.good() == (STATES["ready"], {"ready"})
            for state in ("recovering", "ready", "starting", "draining", "failed"):
                w.scheduler.change(state, "/home/me/weights are gone")
                await w.until(lambda state=state: w.server.scheduler.state == state)
                assert await probes.good() == (STATES[state], {state})
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await probes._stub.Check(health_pb2.HealthCheckRequest(service="nobody"))
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    asyncio.run(main())


def test_a_lost_scheduler_is_waited_for_as_long_as_a_start_may_take(web, monkeypatch):
    async def main():
        async with probing(web) as (w, probes):
            watch = probes.watch("liveness")
            assert (await watch.read()).status == SERVING
            now = time.monotonic()
            monkeypatch.setattr(health, "monotonic", lambda: now + 3600.0)  # it was ready for long
            await w.serving.lose()
            assert await probes.good() == (STATES["lost"], {"lost"})
            monkeypatch.setattr(health, "monotonic", lambda: now + 7200.0)
            assert await probes.good() == (set(), {"lost"})
            watch.cancel()


def test_a_watcher_hears_that_an_engine_does_not_heal(web):
    async def main():
        async with probing(web) as (w, probes):
            w.server.health._longest_healing_seconds = 0.2
            watch = probes.watch("liveness")
            assert (await watch.read()).status == SERVING
            await w.serving.lose()
            assert (await watch.read()).status != SERVING
            watch.cancel()

    asyncio.run(main())


def test_a_drain_of_this_frontend_alone_is_told_by_every_probe(web):
    async def main():
        async with probing(web) as (w, probes):
            asking = asyncio.create_task(w.complete(prompt="x"))
            number = (await w.scheduler.submitted()).number
            w.server.drain()
            assert await probes.good() == (STATES["draining"], {"draining"})
            w.scheduler.answer(number, [70])
            assert (await asking).status_code == 200

    asyncio.run(main())


@pytest.mark.parametrize("whose", ["its own", "another's"])
def test_steps_that_stand_still_are_told_by_every_probe_and_watcher_of_every_frontend(web, monkeypatch, whose):
    monkeypatch.setattr(step_progress, "STALLED_SECONDS", 0.2)

    async def main():
        async with probing(web, lost_after_seconds=30.0) as (w, probes):
            watches = [probes.watch(service) for service in ("", "workers", "scheduler")]
            for watch in watches:
                assert (await watch.read()).status == SERVING

            def heard() -> int:
                return w.server.scheduler._step_progress._step[1]

            if whose == "its own":
                asking = asyncio.create_task(w.complete(prompt="x"))
                number = (await w.scheduler.submitted()).number
            w.scheduler.stands_still = True
            standing = w.scheduler.step
            await w.until(lambda: heard() == standing)  # a beat of a moment ago would still be news
            for watch in watches[:2]:
                assert (await watch.read()).status != SERVING
            assert await probes.good() == (STATES["stalled"], {"stalled"})
            assert (await w.serving.client.server_info()).state == "stalled"
            assert "quire_engine_ready 0.0" in (await w.client.get("/metrics")).text
            w.scheduler.stands_still = False
            for watch in watches[:2]:
                assert (await watch.read()).status == SERVING
            if whose == "its own":
                w.scheduler.answer(number, [70])
                assert (await asking).status_code == 200
            for watch in watches:
                watch.cancel()

    asyncio.run(main())


def test_before_its_first_start_is_over_an_engine_is_not_up_and_not_to_be_ended(web, tmp_path):
    async def main():
        address = f"ipc://{tmp_path}/late.sock"
        async with probing(web, wait=False, scheduler_address=address) as (w, probes):
            assert await probes.good() == (LIVE, {"starting"})
            assert (await w.client.get("/version")).json()["version"]
            async with w.serving.new_scheduler(address, state="starting") as scheduler:
                await w.until(lambda: w.server.scheduler.welcome is not None)
                assert await probes.good() == (LIVE | {"scheduler"}, {"starting"})
                await scheduler.__aexit__()
                await w.serving.lose()
                assert await probes.good() == (LIVE, {"lost"})
                await scheduler.__aenter__()

    asyncio.run(main())


def test_no_list_of_models_is_there_before_the_engine_is_ready(web, tmp_path):
    """Who waits for a server asks for them, whatever client it is."""

    async def main():
        address = f"ipc://{tmp_path}/late.sock"
        async with web(wait=False, scheduler_address=address) as w:

            async def statuses() -> set[int]:
                found = set()
                for path in ("/v1/models", "/v1/models/tiny", "/models", "/api/tags", "/api/ps", "/props"):
                    for headers in ({}, {"anthropic-version": "2023-06-01"}):
                        found.add((await w.client.get(path, headers=headers)).status_code)
                return found | {(await w.client.post("/api/show", json={"model": "tiny"})).status_code}

            for state in ("starting", "ready"):
                async with w.serving.new_scheduler(address, life=state, state=state) as scheduler:
                    scheduler.facts = scheduler.facts if state == "ready" else None
                    await w.until(lambda state=state: getattr(w.server.scheduler.welcome, "life", "") == state)
                    if state == "ready":
                        assert await statuses() == {200}
                        assert (await w.serving.client.models())[0].name == "tiny"
                        continue
                    assert await statuses() == {503}
                    response = await w.client.get("/v1/models")
                    assert (response.json()["error"]["code"], response.headers["retry-after"]) == ("starting", "1")
                    with pytest.raises(RequestError) as caught:
                        await w.serving.client.models()
                    assert caught.value.reason == "STARTING"

    asyncio.run(main())


def test_models_and_adapters_are_listed_and_found_by_name(web):
    async def main():
        async with web(served_model_names=("org/tiny", "tiny")) as w:
            listed = (await w.client.get("/v1/models")).json()
            assert listed["object"] == "list"
            assert [model["id"] for model in listed["data"]] == ["org/tiny", "tiny", "poet"]
            assert listed["data"][2]["parent"] == "org/tiny"
            card = (await w.client.get("/v1/models/org/tiny")).json()
            assert (card["max_model_len"], card["vocab_size"]) == (512, 420)
            assert (card["quantization"], card["kv_dtype"]) == ("fp8 (f8 blocks)", "float8_e4m3fn")
            missing = await w.client.get("/v1/models/..%2Fetc")
            assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_model")

    asyncio.run(main())


def test_tokenize_and_detokenize_are_inverse_and_show_the_texts_when_asked(web, tokenizer):
    async def main():
        async with web() as w:
            asked = {"prompt": "hello world", "return_token_strs": True}
            told = (await w.client.post("/tokenize", json=asked)).json()
            ids = tokenizer.encode("hello world").ids
            assert (told["tokens"], told["count"], told["max_model_len"]) == (ids, len(ids), 512)
            assert "".join(told["token_strs"]) == "hello world"
            back = (await w.client.post("/detokenize", json={"tokens": ids})).json()
            assert back == {"prompt": "hello world", "content": "hello world"}
            theirs = (await w.client.post("/tokenize", json={"content": "hello world", "add_special": False})).json()
            assert theirs["tokens"] == ids
            chat = {"messages": [{"role": "user", "content": "hello"}]}
            rendered = (await w.client.post("/tokenize", json=chat)).json()
            assert rendered["count"] > 1
            assert rendered["token_strs"] is None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": "x", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/detokenize", {"tokens": [421]}, "token_ids"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
    ],
)
def test_mistakes_in_tokenize_and_detokenize_are_named(web, path, body, param):
    async def main():
        async with web() as w:
            response = await w.client.post(path, json=body)
            assert (response.status_code, response.json()["error"]["param"]) == (400, param)

    asyncio.run(main())


def test_load_counts_open_requests(web):
    async def main():
        async with web() as w:
            assert (await w.client.get("/load")).json() == {"server_load": 0}
            asking = asyncio.create_task(w.complete(prompt="x"))
            number = (await w.scheduler.submitted()).number
            assert (await w.client.get("/load")).json() == {"server_load": 1}
            w.scheduler.answer(number, [70])
            await asking

    asyncio.run(main())
