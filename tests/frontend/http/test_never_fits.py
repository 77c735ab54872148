"""A text that no tokens are long enough for is refused before it reaches the tokenizer, over both servers."""

import asyncio

import pytest

from quire.frontend.text.tokenizer import TextTokenizer
from quire.proto.api import Chat, ChatMessage, GenerateRequest, RequestError

LONG = "hello " * 20_000
"""Too long for 512 tokens of the tokenizer's longest, and short enough to be encoded in this process."""


@pytest.fixture
def encoded(monkeypatch) -> list[int]:
    """The length of every text that reached the tokenizer."""
    lengths: list[int] = []

    def counted(encode):
        def count(self, text, *rest, **more):
            lengths.append(len(text))
            return encode(self, text, *rest, **more)

        return count

    for name in ("column", "template_column"):
        monkeypatch.setattr(TextTokenizer, name, counted(getattr(TextTokenizer, name)))
    return lengths


@pytest.mark.parametrize("kind", ["text", "chat"])
def test_it_is_refused_before_it_is_tokenized(web, encoded, kind) -> None:
    asked = Chat([ChatMessage("user", LONG)]) if kind == "chat" else LONG
    messages = [{"role": "user", "content": LONG}]
    paths = {
        "text": [("/v1/completions", {"prompt": LONG}, "prompt")],
        "chat": [
            ("/v1/chat/completions", {"messages": messages}, "messages"),
            ("/v1/messages", {"model": "tiny", "messages": messages, "max_tokens": 1}, "messages"),
            ("/v1/responses", {"input": LONG}, "input"),
        ],
    }[kind]

    async def main() -> None:
        async with web() as w:
            with pytest.raises(RequestError) as caught:
                await w.serving.client.generate(GenerateRequest(input=asked, max_tokens=1))
            field = "chat" if kind == "chat" else "prompt"
            assert (caught.value.reason, caught.value.field) == ("CONTEXT_LENGTH_EXCEEDED", field)
            assert "can never fit the context of 512 tokens; shorten it" in str(caught.value)
            for path, body, param in paths:
                response = await w.client.post(path, json=body)
                assert response.status_code == 400, path
                assert "can never fit the context of 512 tokens; shorten it" in response.text
                assert f"{param}: " in response.text
            assert not [length for length in encoded if length >= len(LONG)]

    asyncio.run(main())


def test_what_is_cut_or_only_counted_is_tokenized_whole(web, encoded) -> None:
    chat = Chat([ChatMessage("user", LONG)])

    async def main() -> None:
        async with web() as w:
            w.answers([70])
            await w.serving.client.generate(GenerateRequest(input=chat, max_tokens=1, truncate_prompt_tokens=9))
            assert len((await w.serving.client.tokenize(chat)).token_ids) > 20_000
            asked = {"model": "tiny", "messages": [{"role": "user", "content": LONG}]}
            counted = await w.client.post("/v1/messages/count_tokens", json=asked)
            assert counted.json()["input_tokens"] > 20_000
            assert len([length for length in encoded if length >= len(LONG)]) == 3

    asyncio.run(main())
