"""What the joined bytes of logprobs have to do with the text, however an answer ends; over both servers."""

import asyncio
import shutil
from dataclasses import dataclass, field
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from quire.proto.api import GenerateRequest
from quire.proto.messages.requests import OutputLogprobs, PositionLogprobs

END, TURN = 0, 1
HELLO, FOX, THE, QUICK, HALF = "hello", " fox", "the", " quick", "\u65e5"


@dataclass
class Case:
    """`drawn`: texts of one token each, or ids. `stop_token`: how the scheduler says that the last one ended it."""

    drawn: tuple[str | int, ...]
    text: str
    shown: bytes
    asked: dict[str, Any] = field(default_factory=dict)
    ends: bool = False


INCLUDED = {"include_stop_str_in_output": True}
SPECIALS = {"skip_special_tokens": False}
CASES = {
    "cut by length": Case((HELLO, FOX), "hello fox", b"hello fox"),
    "EOS": Case((HELLO, END), "hello", b"hello<|end|>", ends=True),
    "EOS, special tokens shown": Case((HELLO, END), "hello", b"hello<|end|>", SPECIALS, ends=True),
    "EOS, stops included": Case((HELLO, END), "hello", b"hello<|end|>", INCLUDED, ends=True),
    "EOS, both": Case((HELLO, END), "hello<|end|>", b"hello<|end|>", SPECIALS | INCLUDED, ends=True),
    "stop token": Case((HELLO, FOX), "hello", b"hello fox", ends=True),
    "stop token, included": Case((HELLO, FOX), "hello fox", b"hello fox", INCLUDED, ends=True),
    "stop string": Case((THE, QUICK, FOX), "the ", b"the quick", {"stop": ["qu"]}),
    "stop string, included": Case((THE, QUICK, FOX), "the qu", b"the quick", {"stop": ["qu"]} | INCLUDED),
    "stop string over two tokens": Case((THE, QUICK, FOX), "th", b"the quick", {"stop": ["e q"]}),
    "special token": Case((HELLO, TURN, FOX), "hello fox", b"hello<|turn|> fox"),
    "special token shown": Case((HELLO, TURN, FOX), "hello<|turn|> fox", b"hello<|turn|> fox", SPECIALS),
    "part of a character": Case((HALF,), "\ufffd", b"\xe6\x97"),
}


@pytest.mark.parametrize("name", CASES)
def test_they_are_the_text_but_for_what_ends_it_and_what_is_hidden(web, tokenizer, name) -> None:
    case = CASES[name]
    tokens = [one if isinstance(one, int) else tokenizer.encode(one).ids[0] for one in case.drawn]

    async def main() -> None:
        async with web() as w:

            def script(submit) -> None:
                entries = tuple(PositionLogprobs(token, -0.5, 1, (token,), (-0.5,)) for token in tokens)
                events = [(0, position, token) for position, token in enumerate(tokens)]
                reason, stop_token = ("stop", tokens[-1]) if case.ends else ("length", -1)
                end = w.scheduler.finish(submit.number, len(tokens), reason, stop_token_id=stop_token)
                w.scheduler.outputs(submit.number, events, [end], [OutputLogprobs(submit.number, 0, False, 0, entries)])

            w.scheduler.script = script
            asked = GenerateRequest(input=(9,), logprobs=1, **case.asked)
            (output,) = (await w.serving.client.generate(asked)).outputs
            assert output.text == case.text
            assert b"".join(entry.token_bytes for entry in output.logprobs) == case.shown
            assert [entry.token_id for entry in output.logprobs] == list(output.token_ids)
            (choice,) = (await w.complete(prompt=[9], logprobs=1, **case.asked)).json()["choices"]
            assert choice["text"] == case.text
            assert b"".join(map(bytes, choice["logprobs"]["bytes"])) == case.shown

    asyncio.run(main())


@pytest.mark.parametrize("echo", [False, True])
def test_offsets_are_places_in_the_text(web, tokenizer, read_items, echo):
    """Where a character is made of several tokens, and behind a token that the text does not show."""
    written = "🦊 fox 한"
    prompt = tokenizer.encode(written).ids
    drawn = [*tokenizer.encode("é 🦊").ids, TURN, *tokenizer.encode("ox").ids]
    places_are_right(web, read_items, written, prompt, drawn, "é 🦊ox", echo)


@pytest.mark.parametrize("echo", [False, True])
def test_a_space_that_a_text_loses_moves_no_offset(web, model_dir, read_items, tmp_path, echo):
    """As SentencePiece's texts do, of Llama 2 and its kin."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "<s>", "▁", "▁the", "▁fox", "o", "x", "é"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    made = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    made.add_special_tokens([AddedToken("<s>", special=True)])
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", vocabulary["<s>"])])
    shutil.copytree(model_dir, tmp_path / "model")
    made.save(str(tmp_path / "model/tokenizer.json"))
    drawn = [vocabulary[piece] for piece in ("▁fox", "<s>", "é", "▁the", "x")]
    prompt = made.encode("x é🦊 ox").ids
    settings = {"model": str(tmp_path / "model")}
    places_are_right(web, read_items, "x é🦊 ox", prompt, drawn, "foxé thex", echo, **settings)


def places_are_right(web, read_items, written, prompt, drawn, text, echo, **settings) -> None:
    def entries(tokens: list[int]) -> tuple[PositionLogprobs, ...]:
        return tuple(PositionLogprobs(token, -0.5, 1, (token,), (-0.5,)) for token in tokens)

    async def main():
        async with web(**settings) as w:

            def script(submit) -> None:
                assert memoryview(submit.prompt).cast("I").tolist() == prompt
                events = [(0, position, token) for position, token in enumerate(drawn)]
                end = w.scheduler.finish(submit.number, len(drawn), "length")
                scored = [OutputLogprobs(submit.number, 0, True, 1, entries(prompt[1:]))] if echo else []
                scored.append(OutputLogprobs(submit.number, 0, False, 0, entries(drawn)))
                w.scheduler.outputs(submit.number, events, [end], scored)

            w.scheduler.script = script
            asked = {"prompt": written, "echo": echo, "logprobs": 1, "max_tokens": len(drawn)}
            (choice,) = (await w.complete(**asked)).json()["choices"]
            assert choice["text"] == (written if echo else "") + text
            offsets = choice["logprobs"]["text_offset"]
            for token, place in zip(choice["logprobs"]["tokens"], offsets, strict=True):
                shown = token if place and place != len(written) * echo else token.lstrip()
                if "\ufffd" not in token and token not in ("<|turn|>", "<s>"):
                    assert choice["text"][place : place + len(shown)] == shown
            assert sorted(offsets) == offsets
            assert offsets[-1] < len(choice["text"])
            items = read_items((await w.complete(**asked, stream=True)).text)[:-1]
            told = [one["logprobs"]["text_offset"] for item in items for one in item["choices"] if one["logprobs"]]
            assert [place for one in told for place in one] == offsets

    asyncio.run(main())
