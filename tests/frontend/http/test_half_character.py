"""Half a character in a body: found wherever it stands, at every route, and said in the words of its field."""

import asyncio

import msgspec
import pytest

from quire.frontend.limits.half_character import half_character
from quire.frontend.limits.json_scan import STEP


@pytest.mark.parametrize(
    ("text", "path", "half"),
    [
        (r'{"a": "\ud800"}', "a", r"\ud800"),
        (r'{"a": 1, "b": [1, 2, [3], {"c": "x\uDC00 and more"}]}', "b[3].c", r"\uDC00"),
        (r'{"a": "\ud83d\ude00", "b": ["\\ud800", "\ud83c\ud83d\ude00"]}', "b[1]", r"\ud83c"),
        (r'["}", "{", ",", "\"", "\ude00"]', "[4]", r"\ude00"),
        (r'"\udfff"', "", r"\udfff"),
        ('{"a": "' + "x" * (STEP - 10) + r'\ud83d\ude00", "b": "\ud83e"}', "b", r"\ud83e"),
    ],
)
def test_the_first_one_is_named_by_its_place(text: str, path: str, half: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(text)
    found = half_character(text.encode())
    assert found is not None
    assert found[0] == path
    assert found[1].startswith(f"holds {half} at byte {text.index(half)} ")


@pytest.mark.parametrize("text", ["", "{", r'{"a": "\ud83d\ude00"}', r'"\\ud800"', r'"\u12"', '"\\'])
def test_other_texts_hold_none(text: str) -> None:
    assert half_character(text.encode()) is None


def test_every_route_says_which_field_and_what_to_send(web) -> None:
    bodies = {
        "/v1/completions": (r'{"prompt": "\ud800"}', "prompt"),
        "/v1/chat/completions": (r'{"messages": [{"role": "user", "content": "\ud800 x"}]}', "messages[0].content"),
        "/v1/responses": (r'{"input": "\ud800"}', "input"),
        "/v1/messages": (r'{"model": "tiny", "max_tokens": 1, "system": "\udc00x"}', "system"),
        "/api/generate": (r'{"model": "tiny", "prompt": "\ud800"}', "prompt"),
        "/tokenize": (r'{"prompt": "\ud800"}', "prompt"),
        "/infill": (r'{"input_prefix": "\ud800"}', "input_prefix"),
    }

    async def main() -> None:
        async with web() as w:
            for path, (body, field) in bodies.items():
                refused = await w.client.post(path, content=body, headers={"content-type": "application/json"})
                assert refused.status_code == 400, path
                error = refused.json()["error"]
                said = error if isinstance(error, str) else error["message"]
                assert f"{field}: holds" in said, path
                assert r"send both halves, or \ufffd" in said, path

    asyncio.run(main())
