"""POST /completion, and what /infill shares with it: what clients of llama-server send and read."""

import asyncio
import json

import pytest

from quire.proto.transport.wire import unpack

OFF = {
    "mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1, "typical_p": 1, "tfs_z": 1.0, "top_n_sigma": -1.0,
    "dynatemp_range": 0, "dynatemp_exponent": 1, "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2,
    "dry_penalty_last_n": -1, "dry_sequence_breakers": ["\n"], "xtc_probability": 0, "xtc_threshold": 0.1,
    "repeat_last_n": 64, "n_keep": 0, "min_keep": 0, "n_probs": 0, "grammar": "", "image_data": [], "id_slot": -1,
    "slot_id": -1, "cache_prompt": True, "logit_bias": [], "n_discard": 0, "ignore_eos": False, "stop": [],
}  # fmt: skip
"""What a page of settings sends with every request, all of it switched off."""


async def ask(w, **fields):
    return await w.client.post("/completion", json={"prompt": "hello", **fields})


def lines(text: str) -> list[dict]:
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n") if line]


def test_a_prompt_is_continued_whole_and_streamed(web, tokenizer):
    async def main():
        async with web() as w:
            ids = tokenizer.encode(" world and more").ids
            w.answers(ids, "length")
            whole = (
                await ask(w, n_predict=len(ids), top_k=40, repeat_penalty=1.1, seed=-1, return_tokens=True, **OFF)
            ).json()
            assert (whole["content"], whole["stop"], whole["stop_type"]) == (" world and more", True, "limit")
            assert (whole["stopped_limit"], whole["stopped_eos"], whole["tokens"]) == (True, False, ids)
            assert (whole["tokens_predicted"], whole["timings"]["predicted_n"]) == (len(ids), len(ids))
            submit = w.scheduler.submits[-1]
            assert unpack(submit.prompt).tolist() == tokenizer.encode("hello").ids
            assert (submit.params.top_k, submit.params.repetition_penalty) == (40, 1.1)
            told = lines((await ask(w, stream=True, n_predict=len(ids))).text)
            assert [one["stop"] for one in told] == [False] * (len(told) - 1) + [True]
            assert "".join(one["content"] for one in told) == whole["content"]
            by_ids = (await ask(w, prompt=tokenizer.encode("hello").ids)).json()
            assert by_ids["content"] == whole["content"]
            assert w.scheduler.submits[-1].params.max_tokens == 512 - len(tokenizer.encode("hello").ids)

    asyncio.run(main())


def test_a_prompt_is_raw_and_its_special_tokens_are_parsed(web, tokenizer):
    async def main():
        async with web() as w:
            w.answers([75])
            for fields, count in (({}, 1), ({"parse_special": False}, 5)):
                assert (await ask(w, prompt="<|end|>", **fields)).status_code == 200
                assert (len(unpack(w.scheduler.submits[-1].prompt)) == 1) == (count == 1)

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_are_a_prompt_that_is_read_for_later(web, tokenizer, stream):
    async def main():
        async with web() as w:
            w.answers([75], "stop")
            answer = await ask(w, n_predict=0, n_probs=2, stream=stream)
            (end,) = lines(answer.text)
            assert (end["content"], end["tokens"], end["stop"], end["stop_type"]) == ("", [], True, "limit")
            assert (end["tokens_predicted"], end["timings"]["predicted_n"]) == (0, 0)
            assert "completion_probabilities" not in end
            assert w.scheduler.submits[-1].params.max_tokens == 1

    asyncio.run(main())


def test_a_grammar_or_a_schema_binds_and_probabilities_are_told(web, tokenizer):
    async def main():
        async with web() as w:
            w.answers([75])
            await ask(w, grammar='root ::= "yes" | "no"')
            assert w.scheduler.submits[-1].params.structured.kind == "grammar"
            await ask(w, json_schema={"type": "boolean"})
            assert w.scheduler.submits[-1].params.structured.kind == "json_schema"
            await ask(w, logit_bias=[[5, 1.5], [6, False]])
            assert w.scheduler.submits[-1].params.logit_bias == ((5, 1.5), (6, -100.0))
            await ask(w, n_probs=3)
            assert w.scheduler.submits[-1].params.logprobs == 3

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"mirostat": 2}, "mirostat", "remove it"),
        ({"dry_multiplier": 0.8}, "dry_multiplier", "remove it"),
        ({"image_data": [{"data": "", "id": 1}]}, "image_data", "remove it"),
        ({"prompt": ["a", "b"]}, "prompt", "send one request for each"),
        ({"prompt": ["a", 3]}, "prompt", "/tokenize"),
        ({"n": 2}, "n", "send one request for each"),
        ({"grammar": "root ::= x", "json_schema": {}}, "grammar", "set only one"),
        ({"grammar": "root ::= ("}, "grammar", ""),
        ({"n_probs": 99}, "n_probs", "[0, 20]"),
        ({"logit_bias": [["Hello", 1]]}, "logit_bias", "'Hello': no token id; use those that /tokenize gives"),
        ({"prompt": [10**6]}, "prompt", "outside"),
        ({"response_fields": ["a"] * 65}, "response_fields", "at most 64"),
    ],
)
def test_what_cannot_be_meant_here_is_refused_by_its_name(web, fields, param, said):
    async def main():
        async with web() as w:
            refused = await ask(w, **fields)
            error = refused.json()["error"]
            assert (refused.status_code, error["param"]) == (400, param)
            assert said in error["message"]

    asyncio.run(main())
