"""/health, /ready, /ping, /version, /load, /v1/models, /tokenize and /detokenize."""

import asyncio

import pytest

from quire.frontend.stream import step_progress


def test_health_and_readiness_follow_the_engines_state_word(web):
    async def main():
        async with web() as w:

            async def told(path: str) -> tuple[int, str]:
                response = await w.client.get(path)
                return response.status_code, response.json()["status"]

            for path in ("/health", "/ready", "/ping"):
                assert await told(path) == (200, "ready")
            for state, healthy in (("recovering", 503), ("draining", 200), ("failed", 503)):
                w.scheduler.change(state, "/home/me/weights are gone")
                await w.until(lambda state=state: w.server.scheduler.state == state)
                assert await told("/health") == (healthy, state)
                assert await told("/ready") == (503, state)
                assert "weights" not in (await w.client.get("/ready")).text  # no key was asked for

    asyncio.run(main())


def test_an_engine_whose_steps_stand_still_under_a_request_is_not_healthy(web, monkeypatch):
    monkeypatch.setattr(step_progress, "STALLED_SECONDS", 0.2)

    async def main():
        async with web(lost_after_seconds=30.0) as w:

            def heard() -> int:
                return w.server.scheduler._step_progress._step[1]

            asking = asyncio.create_task(w.complete(prompt="x"))
            number = (await w.scheduler.submitted()).number
            w.scheduler.stands_still = True
            standing = w.scheduler.step
            await w.until(lambda: heard() == standing)  # a beat of a moment ago would still be news
            await w.until(lambda: w.server.scheduler.progress() == "stalled")
            response = await w.client.get("/health")
            assert (response.status_code, response.json()["status"]) == (503, "stalled")
            w.scheduler.stands_still = False
            await w.until(lambda: heard() > standing and w.server.scheduler.progress() == "ready")
            w.scheduler.answer(number, [70])
            assert (await asking).status_code == 200

    asyncio.run(main())


def test_a_frontend_without_a_scheduler_is_starting_and_says_so(web):
    async def main():
        async with web(wait=False) as w:
            w.scheduler.muted = True
            response = await w.client.get("/health")
            assert response.status_code in (200, 503)
            assert (await w.client.get("/version")).json()["version"]

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
