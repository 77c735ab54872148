"""Sampling fields under the names that other servers' users send."""

import asyncio
import json

import pytest

USER = {"role": "user", "content": "hello"}
ROUTES = {"/v1/completions": {"prompt": "hello"}, "/v1/chat/completions": {"messages": [USER]}}


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("alias", ["n_predict", "num_predict"])
def test_the_names_of_llama_server_and_ollama_mean_ours(web, path, alias):
    async def main():
        async with web() as w:
            w.answers([75])
            fields = ROUTES[path] | {alias: 3, "repeat_penalty": 1.25}
            assert (await w.client.post(path, json=fields)).status_code == 200
            params = w.scheduler.submits[-1].params
            assert (params.max_tokens, params.repetition_penalty) == (3, 1.25)
            same = {"max_tokens": 3, "repetition_penalty": 1.25}
            assert (await w.client.post(path, json=fields | same)).status_code == 200
            assert w.scheduler.submits[-1].params.max_tokens == 3

    asyncio.run(main())


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"n_predict": 3, "max_tokens": 4}, "n_predict", "is 3, but max_tokens is 4; set only one of them"),
        ({"n_predict": 3, "num_predict": 4}, "num_predict", "is 4, but max_tokens is 3"),
        ({"repeat_penalty": 1.0, "repetition_penalty": 1.1}, "repeat_penalty", "set only one of them"),
        ({"repeat_penalty": -1}, "repeat_penalty", "must be"),
        ({"num_predict": 0}, "num_predict", "must be"),
    ],
)
def test_two_names_that_differ_and_bad_values_are_refused_by_the_name_that_was_sent(web, path, fields, param, words):
    async def main():
        async with web() as w:
            response = await w.client.post(path, json=ROUTES[path] | fields)
            assert response.status_code == 400
            error = response.json()["error"]
            assert error["param"] == param
            assert words in error["message"]

    asyncio.run(main())


SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}}


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("regex", "a+", "regex"),
        ("ebnf", 'root ::= "yes" | "no"', "grammar"),
        ("grammar", 'root ::= "yes" | "no"', "grammar"),
        ("json_schema", SCHEMA, "json_schema"),
        ("json_schema", json.dumps(SCHEMA), "json_schema"),
    ],
)
def test_the_names_of_sglang_and_llama_server_bind_an_output(web, path, field, value, kind):
    async def main():
        async with web() as w:
            w.answers([75])
            assert (await w.client.post(path, json=ROUTES[path] | {field: value})).status_code == 200
            structured = w.scheduler.submits[-1].params.structured
            assert structured.kind == kind
            assert json.loads(structured.text) == SCHEMA if kind == "json_schema" else structured.text == value
            both = await w.client.post(path, json=ROUTES[path] | {field: value, "guided_choice": ["a"]})
            assert both.json()["error"]["param"] == field
            assert "excludes guided_choice" in both.json()["error"]["message"]
            wrong = await w.client.post(path, json=ROUTES[path] | {field: "("})
            assert (wrong.json()["error"]["param"], wrong.json()["error"]["code"]) == (field, "invalid_grammar")

    asyncio.run(main())


def test_every_wrong_key_of_logit_bias_is_named(web):
    async def main():
        async with web() as w:
            refused = await w.client.post(
                "/v1/completions", json={"prompt": "x", "logit_bias": {"no": 1, "1": 1, "x": 2}}
            )
            error = refused.json()["error"]
            assert (refused.status_code, error["param"]) == (400, "logit_bias")
            assert "'no', 'x': no token id; use those that /tokenize gives" in error["message"]

    asyncio.run(main())
