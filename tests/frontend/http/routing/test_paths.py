"""Paths as users of other servers call them: without /v1, with it twice, or those that are not served here."""

import asyncio

import pytest

from quire.frontend.http.routing.not_served import NOT_SERVED


def test_the_routes_of_openai_and_anthropic_answer_without_v1(web, tokenizer):
    async def main():
        async with web() as w:
            w.answers(tokenizer.encode("hello world").ids)
            for path in ("/completions", "/v1/completions"):
                answer = await w.client.post(path, json={"prompt": "x"})
                assert answer.json()["choices"][0]["text"] == "hello world"
            chat = {"messages": [{"role": "user", "content": "x"}]}
            answer = (await w.client.post("/chat/completions", json=chat)).json()
            assert answer["choices"][0]["message"]["content"] == "hello world"
            answer = (await w.client.post("/messages", json={**chat, "max_tokens": 5, "model": "tiny"})).json()
            assert answer["content"][0]["text"] == "hello world"
            stored = (await w.client.post("/responses", json={"input": "x"})).json()
            assert (await w.client.get(f"/responses/{stored['id']}")).json()["id"] == stored["id"]
            assert (await w.client.get("/models/tiny")).json() == (await w.client.get("/v1/models/tiny")).json()
            count = (await w.client.post("/v1/tokenize", json={"prompt": "hello"})).json()["count"]
            assert count == len(tokenizer.encode("hello").ids)
            assert (await w.client.get("/v1/health")).json() == {"status": "ready"}
            refused = (await w.client.post("/messages", json={"model": "tiny"})).json()
            assert refused["type"] == "error"  # Anthropic's shape
            seen = (await w.client.get("/metrics")).text
            assert 'quire_http_responses_total{code="200",method="POST",route="/chat/completions"}' in seen

    asyncio.run(main())


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("POST", "/v1/audio/transcriptions", "text only"),
        ("POST", "/images/generations", "text only"),
        ("GET", "/v1/files/file-1/content", "run-batch"),
        ("POST", "/v1/fine_tuning/jobs", "does not train"),
        ("POST", "/v1/decisions", "guided_choice"),
        ("POST", "/embed", "/v1/embeddings"),
        ("POST", "/v1/load_lora_adapter", "adapters"),
        ("POST", "/sleep", "does not sleep"),
        ("POST", "/v1/v1/chat/completions", "did you mean /v1/chat/completions?"),
        ("POST", "/openai/v1/completions/", "did you mean /v1/completions?"),
        ("GET", "/nothing" + "/" * 20_000, "openapi.json"),
    ],
)
def test_what_is_not_served_is_refused_by_name_with_what_to_use(web, method, path, said):
    async def main():
        async with web() as w:
            answer = await w.client.request(method, path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
            assert said in answer.json()["error"]["message"]

    asyncio.run(main())


def test_no_path_is_refused_and_served(web):
    async def main():
        async with web() as w:
            for path in NOT_SERVED:
                answer = await w.client.post(path)
                assert (answer.status_code, f"{path} is not served here" in answer.text) == (404, True), path

    asyncio.run(main())
