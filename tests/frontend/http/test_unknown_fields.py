"""Fields that a route does not know are dropped and named in the answer, unless that could mislead."""

import asyncio
import json
import re

import msgspec
import pytest

from quire.frontend.http.decoding.decode import decode
from quire.frontend.http.decoding.ignored import MAX_HEADER_BYTES, MAX_NAMES, Ignored, note, noting
from quire.frontend.http.decoding.misleading import ELSEWHERE, NEUTRAL, TWINS
from quire.frontend.http.openai.chat_types import ChatRequest
from quire.frontend.http.openai.completion_types import CompletionRequest
from quire.frontend.http.openai.embedding_types import EmbeddingsBody
from quire.frontend.http.score.types import ScoreBody
from quire.proto.messages.params import ParameterError

USER = {"role": "user", "content": "hello"}
CHAT = "/v1/chat/completions"
BODIES = {
    "/v1/completions": {"prompt": "hello"},
    CHAT: {"messages": [USER]},
    "/v1/responses": {"input": "hello", "store": False},
    "/v1/messages": {"model": "tiny", "max_tokens": 3, "messages": [USER]},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": [USER]},
    "/tokenize": {"prompt": "hello"},
}


def dropped(kind: type, body: dict) -> tuple[object, str]:
    """The body as a value, and the names of what it lost."""
    with noting(refuses_unknown=False) as ignored:
        return decode(json.dumps(body).encode(), kind), ignored.header().decode()


@pytest.mark.parametrize("path", BODIES)
def test_every_route_drops_and_names_what_it_does_not_know(web, path: str) -> None:
    async def main() -> None:
        async with web() as w:
            w.answers([75])
            answer = await w.client.post(path, json=BODIES[path] | {"frobnicate": {"a": 1}, "zweck": None})
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-quire-ignored"] == "frobnicate"
            w.answers([75])
            answer = await w.client.post(path, json=BODIES[path] | {"zweck": None})
            assert answer.status_code == 200, answer.text
            assert "x-quire-ignored" not in answer.headers
            page = (await w.client.get("/metrics")).text
            assert re.search(r"^quire_ignored_fields_total(\{.*\})? 1(\.0)?$", page, re.MULTILINE), page

    asyncio.run(main())


def test_unknown_fields_are_dropped_at_every_depth_and_places_count_as_one(web) -> None:
    async def main() -> None:
        part = {"type": "text", "text": "hi", "weight": 2}
        turns = [{**USER, "mood": 1}, {"role": "assistant", "content": [part, part], "id": "a", "async_": None}]
        tool = {"type": "function", "function": {"name": "f", "cost": 1}, "defer": True}
        async with web() as w:
            w.answers([75])
            body = {"messages": [*turns, USER], "tools": [tool], "stream": True, "stream_options": {"x": 1}}
            answer = await w.client.post(CHAT, json=body)
            assert answer.status_code == 200, answer.text
            assert answer.text.endswith("data: [DONE]\n\n")
            names = set(answer.headers["x-quire-ignored"].split(", "))
            assert names == {
                "messages[].mood",
                "messages[].id",
                "messages[].content[].weight",
                "stream_options.x",
                "tools[].function.cost",
                "tools[].defer",
            }

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_formats_that_nobody_checks_are_named(web, stream: bool) -> None:
    async def main() -> None:
        text = {"type": "string", "format": "path"}
        schema = {"type": "object", "properties": {"a": text, "b": text, "c": {"type": "string", "format": "date"}}}
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        async with web() as w:
            w.answers([75])
            for _ in range(2):  # found, then kept
                for more in ({"response_format": format}, {"tools": [tool], "tool_choice": "required"}):
                    answer = await w.client.post(CHAT, json={"messages": [USER], "stream": stream, **more})
                    assert answer.status_code == 200, answer.text
                    assert answer.headers["x-quire-ignored"] == "format=path"

    asyncio.run(main())


class Folder(msgspec.Struct, forbid_unknown_fields=True):
    """A struct that holds itself."""

    inner: "Folder | list[Folder] | None" = None


@pytest.mark.parametrize(
    ("kind", "body", "names"),
    [
        (ScoreBody, {"text_1": "a", "text_2": [{"text": "b", "zzz": 1}, "c"]}, "text_2[].zzz"),
        (ScoreBody, {"text_1": "a", "text_2": {"text": "b", "zzz": 1}}, "text_2.zzz"),
        (EmbeddingsBody, {"input": ["a", {"text": "b", "zzz": 1}]}, "input[].zzz"),
        (EmbeddingsBody, {"input": {"text": "b", "zzz": 1}}, "input.zzz"),
        (Folder, {"inner": {"inner": [{"zzz": 1, "inner": None}]}}, "inner.inner[].zzz"),
    ],
)
def test_every_member_of_a_union_loses_them(kind: type, body: dict, names: str) -> None:
    assert dropped(kind, body)[1] == names


@pytest.mark.parametrize("path", BODIES)
def test_refuse_restores_the_strict_rule(web, path: str) -> None:
    async def main() -> None:
        async with web(unknown_fields="refuse") as w:
            answer = await w.client.post(path, json=BODIES[path] | {"frobnicate": 1})
            assert answer.status_code == 400
            assert "frobnicate: is unknown to this server; remove it" in answer.text
            assert w.scheduler.submits == []

    asyncio.run(main())


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_would_change_the_answer_is_refused_and_its_neutral_value_is_dropped(name: str) -> None:
    chat, completion = {"messages": [USER], "repeat_penalty": 1.1}, {"prompt": "x", "repeat_penalty": 1.1}
    kinds = {ChatRequest: chat, CompletionRequest: completion, EmbeddingsBody: {"input": "x"}}
    kind, body = next((kind, body) for kind, body in kinds.items() if name not in kind.__struct_fields__)
    with pytest.raises(ParameterError, match=f"{name}: would change the answer .*; {re.escape(ELSEWHERE[name])}"):
        dropped(kind, {**body, name: [7]})
    for neutral in ("", [], *NEUTRAL.get(name, ())):
        assert dropped(kind, {**body, name: neutral})[1] == name


SETTINGS = {
    "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "typ_p": 1, "typical_p": 1, "tfs": 1, "top_a": 0,
    "dynatemp_range": 0, "dynatemp_exponent": 1, "xtc_probability": 0, "xtc_threshold": 0.1, "top_n_sigma": -1,
    "repeat_last_n": 64, "repetition_penalty_range": 1024, "repeat_penalty": 1, "repetition_penalty": 1, "rep_pen": 1,
    "frequency_penalty": 0, "presence_penalty": 0, "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2,
    "dry_penalty_last_n": -1, "dry_sequence_breakers": ["\n"], "mirostat": 0, "mirostat_mode": 0, "mirostat_tau": 5,
    "mirostat_eta": 0.1, "smoothing_factor": 0, "smoothing_curve": 1, "guidance_scale": 1, "negative_prompt": "",
    "grammar": "", "grammar_string": "", "custom_token_bans": "", "add_bos_token": True, "ban_eos_token": False,
    "max_tokens": 9, "max_new_tokens": 9, "n_predict": 9, "stop": ["U:"], "stopping_strings": ["U:"],
    "truncation_length": 8192, "min_keep": 0, "images": [],
}  # fmt: skip
"""What pages of settings send with every request (llama-server's, SillyTavern's, text-generation-webui's)."""


@pytest.mark.parametrize(
    "fields",
    [
        SETTINGS,
        {"do_sample": False, "temperature": 0},
        {"random_seed": 7, "seed": 7},
        {"repeat_last_n": -1, "repeat_penalty": 1.1},
        *({name: 7, twins[-1]: 7} for name, twins in TWINS.items() if "stop" not in name),
    ],
)
def test_fields_that_change_nothing_beside_others_are_dropped(fields: dict) -> None:
    for kind, body in ((ChatRequest, {"messages": [USER]}), (CompletionRequest, {"prompt": "x"})):
        names = {name for name in fields if name not in kind.__struct_fields__}
        assert set(dropped(kind, {**body, **fields})[1].removesuffix(", ...").split(", ")) <= names


@pytest.mark.parametrize(
    "fields",
    [
        {"max_new_tokens": 8, "max_tokens": 9},
        {"stop_sequences": ["a"], "stop": ["b"]},
        {"do_sample": False, "temperature": 1},
        {"repeat_last_n": 64, "repeat_penalty": 1.1},
        {"repeat_last_n": 64, "presence_penalty": 1},
    ],
)
def test_fields_that_say_something_else_than_others_are_refused(fields: dict) -> None:
    with pytest.raises(ParameterError, match=f"{next(iter(fields))}: would change the answer"):
        dropped(ChatRequest, {"messages": [USER], **fields})


def test_every_neutral_value_is_one_of_a_field_that_changes_the_answer() -> None:
    assert set(NEUTRAL) | set(TWINS) <= set(ELSEWHERE)
    assert "adapter" not in " ".join(ELSEWHERE.values()).replace("this server has no adapters", "")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("temprature", "temperature"),
        ("temperatures", "temperature"),
        ("tempearture", "temperature"),
        ("maxTokens", "max_tokens"),
        ("max-tokens", "max_tokens"),
        ("topP", "top_p"),
        ("mesages", "messages"),
    ],
)
def test_a_name_close_to_a_known_one_is_a_typo(name: str, meant: str) -> None:
    with pytest.raises(ParameterError, match=f"{name}: is unknown to this server; did you mean {meant}\\?"):
        dropped(ChatRequest, {"messages": [USER], name: 1})


@pytest.mark.parametrize("name", ["x", "xn", "provider", "transforms", "ki_budget", "client_id", "naïve", "a b", ""])
def test_other_names_are_not(name: str) -> None:
    value, header = dropped(ChatRequest, {"messages": [USER], name: 1})
    assert isinstance(value, ChatRequest)
    assert header.isascii()
    assert (header == name) == (name.isascii() and " " not in name)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("typical_p", "remove it"),
        ("thinking_budget", "max_tokens"),
        ("images", "parts of a message"),
    ],
)
def test_what_changes_the_answer_elsewhere_is_refused_with_what_to_do(name: str, remedy: str) -> None:
    with pytest.raises(ParameterError, match=f"{name}: would change the answer .*{remedy}") as caught:
        dropped(ChatRequest, {"messages": [USER], name: 7})
    assert caught.value.reason == "UNSUPPORTED"
    assert dropped(ChatRequest, {"messages": [USER], name: None})[1] == ""


def test_another_mistake_is_found_behind_an_unknown_field() -> None:
    with pytest.raises(ParameterError, match=r"messages\[0\].content: expected"):
        dropped(ChatRequest, {"frobnicate": 1, "messages": [{"role": "user", "mood": 2, "content": 3}]})


def test_values_are_kept_as_they_are_written() -> None:
    raw = b'{"messages": [], "tools": [{"a": 1.50, "b": 12345678901234567890123}], "new": 1, "seed": 7}'
    with noting(refuses_unknown=False):
        value = decode(raw, ChatRequest)
    assert bytes(value.tools[0]) == b'{"a": 1.50, "b": 12345678901234567890123}'
    assert value.seed == 7


def test_the_header_is_bounded_and_cannot_be_split() -> None:
    few = Ignored(refuses_unknown=False)
    few.note("a\r\nset-cookie: x, y")
    few.note("é[3].b[44]")
    assert few.header() == b"a%0D%0Aset-cookie%3A%20x%2C%20y, %C3%A9[].b[]"
    many = Ignored(refuses_unknown=False)
    for number in range(5 * MAX_NAMES):
        many.note(f"n{number}")
    names = many.header().decode().split(", ")
    assert (len(names), names[-1], many.num_noted) == (MAX_NAMES + 1, "...", 5 * MAX_NAMES)
    long = Ignored(refuses_unknown=False)
    for number in range(MAX_NAMES):
        long.note(f"{number}" + "é" * 1000)
    assert len(long.header()) <= MAX_HEADER_BYTES
    assert long.header().endswith(b", ...")


def test_notes_outside_of_a_request_are_lost_and_fields_are_refused() -> None:
    note("x")
    with pytest.raises(ParameterError, match="frobnicate: is unknown to this server; remove it"):
        decode(b'{"messages": [], "frobnicate": 1}', ChatRequest)
