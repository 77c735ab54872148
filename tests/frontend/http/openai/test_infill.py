"""Filling in between a prompt and a suffix, by the marks of each family's tokenizer."""

import asyncio
import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from quire.frontend.text.infill import find_infill
from quire.frontend.text.tokenizer import TextTokenizer
from quire.proto.api import Chat, ChatMessage, GenerateRequest
from quire.proto.transport.wire import unpack

BAR = "\uff5c"
QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|endoftext|>")


@pytest.fixture
def marked(model_dir, tmp_path):
    """`marked(*tokens)`: the directory of a model whose tokenizer has these tokens too."""

    def make(*tokens: str) -> str:
        tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in tokens])
        folder = tmp_path / "marked"
        folder.mkdir()
        tokenizer.save(str(folder / "tokenizer.json"))
        for name in ("tokenizer_config.json", "generation_config.json"):
            (folder / name).write_text((model_dir / name).read_text())
        return str(folder)

    return make


def test_a_completion_with_a_suffix_and_infill_ask_with_the_marks_around(web, marked, tokenizer):
    async def main():
        folder = marked(*QWEN)
        known = Tokenizer.from_file(f"{folder}/tokenizer.json").token_to_id
        encode = lambda text: tokenizer.encode(text).ids  # noqa: E731
        wanted = [known(QWEN[0]), *encode("hello "), known(QWEN[1]), *encode(" world"), known(QWEN[2])]
        async with web(model=folder) as w:
            w.answers(encode("brown fox"), "stop")
            answer = await w.complete(prompt="hello ", suffix=" world", stop_token_ids=[7])
            assert answer.json()["choices"][0]["text"] == "brown fox"
            (submit,) = w.scheduler.submits
            assert unpack(submit.prompt).tolist() == wanted
            assert submit.params.stop_token_ids == (7, known("<|fim_pad|>"), known("<|endoftext|>"))

            body = {"model": "tiny", "prompt": "hello ", "suffix": " world", "stream": False}
            answer = await w.client.post("/api/generate", json=body)
            assert answer.json()["response"] == "brown fox"
            assert unpack(w.scheduler.submits[-1].prompt).tolist() == wanted

            asked = {"input_prefix": "hello ", "input_suffix": " world", "n_predict": 5, "top_k": 40, "prompt": ""}
            answer = await w.client.post("/infill", json={**asked, "samplers": ["top_k"], "n_indent": 4})
            assert answer.headers["x-quire-ignored"] == "samplers, n_indent"
            filled = answer.json()
            assert (filled["content"], filled["stop"], filled["stop_type"]) == ("brown fox", True, "eos")
            assert filled["tokens_evaluated"] == filled["timings"]["prompt_n"] + filled["tokens_cached"]
            submit = w.scheduler.submits[-1]
            assert (unpack(submit.prompt).tolist(), submit.params.max_tokens) == (wanted, 5)
            few = {**asked, "response_fields": ["content", "timings/predicted_n", "nothing/here"]}
            answer = (await w.client.post("/infill", json=few)).json()
            assert answer == {"content": "brown fox", "timings/predicted_n": len(encode("brown fox"))}

            warmed = (await w.client.post("/infill", json={**asked, "n_predict": 0})).json()
            assert (warmed["content"], warmed["tokens_predicted"], warmed["stop_type"]) == ("", 0, "limit")

            extra = [{"filename": "a.py", "text": "stop"}]
            streamed = await w.client.post("/infill", json={**asked, "stream": True, "input_extra": extra})
            items = [json.loads(line[6:]) for line in streamed.text.split("\n") if line.startswith("data: ")]
            assert "".join(item["content"] for item in items) == "brown fox"
            assert [item["stop"] for item in items] == [False] * (len(items) - 1) + [True]
            prompt = unpack(w.scheduler.submits[-1].prompt).tolist()
            assert prompt[1:-1][: len(encode("a.py\nstop\nhello "))] == encode("a.py\nstop\nhello ")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "fields", "param", "code"),
    [
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix", "unsupported"),
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}, "input_suffix", "unsupported"),
        ("/v1/completions", {"prompt": [1], "suffix": "b"}, "suffix", "unsupported"),
        ("/v1/completions", {"prompt": "a", "suffix": "b", "echo": True}, "echo", "unsupported"),
        ("/v1/completions", {"prompt": "a", "suffix": "b", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens",
         "invalid_parameter"),
    ],
)  # fmt: skip
def test_a_suffix_that_cannot_be_used_is_refused_by_its_name(web, path, fields, param, code):
    async def main():
        async with web() as w:
            error = (await w.client.post(path, json=fields)).json()["error"]
            assert (error["param"], error["code"]) == (param, code)
            w.answers([70])
            assert (await w.complete(prompt="a", suffix="")).status_code == 200  # nothing to fill in before
            chat = {"messages": [{"role": "user", "content": "a"}], "suffix": "", "truncate_prompt_tokens": 5}
            assert (await w.client.post("/v1/chat/completions", json=chat)).status_code == 200
            for source in (Chat((ChatMessage("user", "a"),)), [1, 2]):  # over gRPC it is known, and says as little
                await w.serving.client.generate(GenerateRequest(input=source, suffix="", truncate_prompt_tokens=5))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("tokens", "order"),
    [
        (QWEN[:3], "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"),
        (("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), "<fim_prefix>a<fim_suffix>b<fim_middle>"),
        (("<fim-prefix>", "<fim-suffix>", "<fim-middle>"), "<fim-prefix>a<fim-suffix>b<fim-middle>"),
        (("▁<PRE>", "▁<SUF>", "▁<MID>"), "▁<PRE>a▁<SUF>b▁<MID>"),
        (
            (f"<{BAR}fim▁begin{BAR}>", f"<{BAR}fim▁hole{BAR}>", f"<{BAR}fim▁end{BAR}>"),
            f"<{BAR}fim▁begin{BAR}>a<{BAR}fim▁hole{BAR}>b<{BAR}fim▁end{BAR}>",
        ),
        (("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"), "<|code_prefix|>a<|code_suffix|>b<|code_middle|>"),
        (("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"), "<[fim-suffix]>b<[fim-prefix]>a<[fim-middle]>"),
        (("[PREFIX]", "[SUFFIX]", "[MIDDLE]"), "[SUFFIX]b[PREFIX]a"),
    ],
)
def test_every_family_has_its_own_order(marked, tokens, order):
    tokenizer = TextTokenizer(marked(*tokens))
    infill = find_infill(tokenizer)
    assert infill is not None
    a, b = (tokenizer.encode(text) for text in "ab")
    assert infill.joined(a, b, True) == tokenizer.encode(order, parse_special=True)


def test_a_sentencepiece_tokenizer_gets_its_begin_token_and_no_space_before_the_suffix(tmp_path: Path, web):
    pieces = {"<unk>": 0, "<s>": 1, "▁": 2, "a": 3, "b": 4, "▁<PRE>": 5, "▁<SUF>": 6, "▁<MID>": 7}
    pieces |= {f"<0x{byte:02X}>": 8 + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(pieces, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens(["<unk>", "<s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))

    async def main():
        async with web(model=str(tmp_path)) as w:
            w.answers([3])
            for special, begin in ((True, [1]), (False, [])):
                await w.complete(prompt="a", suffix="b", add_special_tokens=special)
                assert unpack(w.scheduler.submits[-1].prompt).tolist() == [*begin, 5, 2, 3, 6, 4, 7]

    asyncio.run(main())
