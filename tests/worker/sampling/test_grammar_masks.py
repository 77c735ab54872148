"""Masks of rows with a grammar equal what the language allows, whatever order steps, deaths and neighbours come in."""

import itertools
import json
import random
import threading
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from quire.kernels.sampling.score import best
from quire.proto.messages.params import SamplingParams, Structured
from quire.proto.messages.plans import Admit, StepPlan
from quire.proto.transport.wire import ints
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.memory.kv_cache import KVCache, LayerKV, kv_layout
from quire.worker.sampling.grammar_masks import GrammarMatchers
from quire.worker.start import build_runner

WIDTH = 300
"""Of the logits: some more than the tokenizer has tokens."""
END = 0
PROMPT = [40, 41, 42]
CPU = Device("cpu", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A byte-level tokenizer with some longer tokens, of letters, digits and what JSON needs."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(["abba bab abc ab ba", '{"a": [1, 2, 12], "ab": "ba"}', "éé ü"] * 9, trainer)
    directory = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(scope="module")
def texts(folder):
    """The bytes of each token."""
    of_unicode = {character: byte for byte, character in pre_tokenizers_bytes().items()}
    vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    return {token: bytes(of_unicode[c] for c in text) for text, token in vocabulary.items() if token != END}


def pre_tokenizers_bytes():
    """Byte -> the character that stands for it in a byte-level vocabulary (GPT-2)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def admit(slot, structured, prompt=PROMPT, output=(), **params):
    asked = SamplingParams(structured=structured, max_tokens=100, **params)
    tokens = [*prompt, *output]
    return Admit(slot, ints(tokens), len(prompt), len(tokens) - 1, 0, asked, ints([0, 1, 2, 3]))


def plan(*admits, releases=()):
    return StepPlan(1, 1, b"", b"", b"", b"", admits=admits, releases=ints(releases))


def bits_of(masks, row=0):
    return set(np.flatnonzero(np.unpackbits(masks.bits[row].view(np.uint8), bitorder="little")).tolist())


def told(matchers, slot, token):
    """As a step that drew `token` tells it."""
    matchers.on_sampled([slot], [0], torch.tensor([token]), CPU.mark(CPU.begin(), 0.0))


LANGUAGES = [
    (Structured("choice", '["ab", "abba", "ba", "éé"]'), {"ab", "abba", "ba", "éé"}),
    (
        Structured("regex", "(ab|ba){1,2}c?"),
        {"".join(parts) + c for n in (1, 2) for parts in itertools.product(("ab", "ba"), repeat=n) for c in ("", "c")},
    ),
    (
        Structured("json_schema", '{"enum": ["ab", 12, "ü", {"a": [1, 2]}]}'),
        {
            '"ab"',
            "12",
            '"ü"',
            '"\\u00fc"',
            *(f'{{"a":{s}[1,{t}2]}}' for s in ("", " ") for t in ("", " ")),
        },
    ),
    (Structured("grammar", 'root ::= "a" mid? "c"\nmid ::= "b" | "bb"'), {"ac", "abc", "abbc"}),
    (Structured("choice", '["a", "b"]', after="12"), None),
]


@pytest.mark.parametrize(("structured", "language"), LANGUAGES[:-1])
def test_masks_allow_exactly_what_some_text_of_the_language_continues_with(folder, texts, structured, language) -> None:
    words = {word.encode() for word in language}
    draw = random.Random(3)

    def begins(tokens):
        return {texts[token][:1] if token != END else b"end" for token in tokens}

    for _ in range(8):
        matchers = GrammarMatchers(folder, WIDTH, (END,), 4, CPU)
        matchers.apply(plan(admit(2, structured)))
        done = b""
        while True:
            allowed = bits_of(matchers.masks([2]).result())
            expected = {t for t, text in texts.items() if any(word.startswith(done + text) for word in words)}
            expected |= {END} if done in words else set()
            assert allowed <= expected, done
            if structured.kind != "json_schema":  # whose spaces and escapes are the library's own affair
                # text that can only go on in one way is written as the tokenizer would
                assert begins(allowed) == begins(expected), done
            token = draw.choice(sorted(allowed))
            if token == END:
                break
            told(matchers, 2, token)
            done += texts[token]
        assert done in words


def test_free_text_comes_first_where_a_marker_is_named(folder, texts) -> None:
    matchers = GrammarMatchers(folder, WIDTH, (END,), 1, CPU)
    matchers.apply(plan(admit(0, LANGUAGES[-1][0])))
    of_text = {text: token for token, text in texts.items()}
    for text in (b"c", b"1", b"1", b"2"):
        allowed = bits_of(matchers.masks([0]).result())
        assert END not in allowed
        assert of_text[b"z"] in allowed
        told(matchers, 0, of_text[text])
    assert bits_of(matchers.masks([0]).result()) == {of_text[b"a"], of_text[b"b"]}


def test_an_output_that_comes_back_goes_on_where_it_was(folder, texts) -> None:
    """After a preemption or a death the tokens so far come with the admission."""
    structured = Structured("json_schema", '{"type": "array", "items": {"enum": [1, 12, "ab"]}, "maxItems": 3}')
    going, back = (GrammarMatchers(folder, WIDTH, (END,), 2, CPU) for _ in range(2))
    going.apply(plan(admit(0, structured)))
    output = []
    draw = random.Random(1)
    while True:
        masks = going.masks([0]).result()
        back.apply(plan(admit(1, structured, output=output), releases=[1] if output else []))
        assert bits_of(back.masks([1]).result()) == bits_of(masks)
        token = draw.choice(sorted(bits_of(masks)))
        if token == END:
            break
        output.append(token)
        told(going, 0, token)
    assert output


def test_after_the_end_only_an_end_may_follow_and_nothing_is_stuck(folder, texts) -> None:
    matchers = GrammarMatchers(folder, WIDTH, (END, 5), 1, CPU)
    matchers.apply(plan(admit(0, Structured("choice", '["a"]'))))
    told(matchers, 0, next(token for token, text in texts.items() if text == b"a"))
    assert bits_of(matchers.masks([0]).result()) == {END, 5}
    told(matchers, 0, 5)
    masks = matchers.masks([0]).result()  # a step that was launched before the end was known
    assert (bits_of(masks), masks.stuck) == ({END, 5}, ())


def test_a_token_that_is_outside_the_grammar_makes_the_row_stuck(folder, texts) -> None:
    matchers = GrammarMatchers(folder, WIDTH, (END,), 2, CPU)
    matchers.apply(plan(*(admit(slot, Structured("choice", '["a"]')) for slot in (0, 1))))
    told(matchers, 0, next(token for token, text in texts.items() if text == b"b"))
    masks = matchers.masks([1, 0]).result()
    assert masks.stuck == (1,)
    assert texts[min(bits_of(masks, 0))] == b"a"


def test_a_compiled_grammar_is_used_again(folder, monkeypatch) -> None:
    compiled = []
    original = GrammarMatchers.masks.__globals__["new_matcher"]
    monkeypatch.setattr(
        "quire.worker.sampling.grammar_masks.new_matcher", lambda *a: compiled.append(1) or original(*a)
    )
    matchers = GrammarMatchers(folder, WIDTH, (END,), 8, CPU)
    matchers.apply(plan(admit(0, Structured("regex", "a+"))))
    matchers.masks([0]).result()
    matchers.apply(plan(*(admit(slot, Structured("regex", "a+")) for slot in range(1, 8))))
    matchers.masks(range(8)).result()
    assert len(compiled) == 1


class Toy:
    """A model whose logits are known: row t of `table` for token t."""

    def __init__(self, table):
        self.table = table

    def forward(self, batch, cache):
        return batch.token_ids[:, None].float()

    def logits(self, hidden):
        return self.table[hidden[:, 0].long()]

    def best(self, hidden):
        values, ids = best(self.logits(hidden))
        return ids, values.isfinite()


@pytest.fixture
def driver(settings, drive, folder):
    """A runner around a model with random but fixed logits; `driver(folder)` looks for its tokenizer elsewhere."""

    def make(tokenizer=folder):
        table = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0))
        config = WorkerConfig(**{**settings, "tokenizer": str(tokenizer)})
        spec = SimpleNamespace(
            vocab_size=WIDTH,
            eos_token_ids=(END,),
            kv_layers=lambda size: (LayerKV(1, 1, 8, None),),
            whole_prompts=False,
            pooling=None,
        )
        cache = KVCache(kv_layout(spec.kv_layers(1), 8, torch.float32), 200, torch.device("cpu"))
        return drive(build_runner(config, spec, Toy(table), cache, 400, CPU, True), 8)

    return make


LONG = Structured("regex", "(ab|ba|c){20}")
GUIDED = SamplingParams(temperature=1.0, seed=4, max_tokens=100, structured=LONG)


def tokens_of(results):
    return [np.frombuffer(result.token_ids, dtype="<i4").tolist() for result in results]


def test_steps_launched_before_the_last_one_is_collected_draw_the_same(driver, texts) -> None:
    def plans(made):
        made.scribe.admit(0, PROMPT, GUIDED)
        made.scribe.admit(1, PROMPT)
        first = made.scribe.plan([(0, 3), (1, 3)])[0]
        return [first, *(made.scribe.plan([(0, 1), (1, 1)])[0] for _ in range(12))]

    one = driver()
    in_order = tokens_of(one.runner.collect(one.runner.launch(step)) for step in plans(one))
    other = driver()
    launched = [other.runner.launch(step) for step in plans(other)]
    assert tokens_of(map(other.runner.collect, launched)) == in_order
    text = b"".join(texts[row[0]] for row in in_order)
    assert text.replace(b"ab", b"").replace(b"ba", b"").replace(b"c", b"") in (b"", b"a", b"b")


def test_a_guided_row_changes_nothing_for_its_neighbours(driver) -> None:
    made, alone = driver(), driver()
    made.scribe.admit(0, PROMPT, GUIDED)
    for each in (made, alone):
        each.scribe.admit(1, PROMPT, SamplingParams(temperature=1.0, seed=9, max_tokens=50))
    together = [tokens_of([made.run([(0, 3), (1, 3)])])[0][1]]
    by_itself = [tokens_of([alone.run([(1, 3)])])[0][0]]
    for _ in range(8):
        together.append(tokens_of([made.run([(0, 1), (1, 1)])])[0][1])
        by_itself.append(tokens_of([alone.run([(1, 1)])])[0][0])
    assert together == by_itself


def test_allowed_ids_and_grammar_hold_together_and_their_conflict_ends_that_row_alone(driver, texts) -> None:
    of_text = {text: token for token, text in texts.items()}
    allowed = SamplingParams(
        max_tokens=9, structured=Structured("regex", "[abc]+"), allowed_token_ids=(of_text[b"a"], of_text[b"z"])
    )
    conflict = msgspec.structs.replace(allowed, allowed_token_ids=(of_text[b"z"],))
    made = driver()
    made.scribe.admit(0, PROMPT, allowed)
    made.scribe.admit(1, PROMPT, conflict)
    result = made.run([(0, 3), (1, 3)])
    assert tokens_of([result])[0][0] == of_text[b"a"]
    assert result.stuck_rows == (1,)
    assert result.bad_rows == ()


def test_a_slot_that_is_used_again_knows_nothing_of_the_last_grammar(driver) -> None:
    made, fresh = driver(), driver()
    made.scribe.admit(0, PROMPT, GUIDED)
    made.run([(0, 3)])
    made.scribe.release(0)
    for each in (made, fresh):
        each.scribe.admit(0, PROMPT)
    assert tokens_of([made.run([(0, 3)])]) == tokens_of([fresh.run([(0, 3)])])


def test_without_a_tokenizer_guided_rows_fail_and_others_run(driver, tmp_path) -> None:
    made = driver(tmp_path)
    made.scribe.admit(0, PROMPT, GUIDED)
    made.scribe.admit(1, PROMPT)
    assert made.run([(0, 3), (1, 3)]).stuck_rows == (0,)


def test_steps_without_grammars_start_no_thread(driver) -> None:
    before = threading.active_count()
    made = driver()
    made.scribe.admit(0, PROMPT)
    made.run([(0, 3)])
    assert threading.active_count() == before


def test_a_long_prompt_does_not_wait_for_its_grammar(driver, monkeypatch) -> None:
    """Only the step that draws the first token does."""
    may_compile = threading.Event()
    original = GrammarMatchers.masks.__globals__["new_matcher"]
    monkeypatch.setattr(
        "quire.worker.sampling.grammar_masks.new_matcher", lambda *a: may_compile.wait(30) and original(*a)
    )
    made = driver()
    made.scribe.admit(0, [*PROMPT] * 4, GUIDED)
    made.scribe.admit(1, PROMPT)
    assert len(tokens_of([made.run([(1, 3), (0, 6)])])[0]) == 1
    may_compile.set()
    assert len(tokens_of([made.run([(1, 1), (0, 6)])])[0]) == 2


def test_the_default_style_leaves_no_room_for_runs_of_white_space(folder, texts) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    matchers = GrammarMatchers(folder, WIDTH, (END,), 1, CPU)
    matchers.apply(plan(admit(0, Structured("json_schema", json.dumps(schema)))))
    of_text = {text: token for token, text in texts.items()}
    for text in (b"{", b'"', b"a", b'"', b":", b" "):
        told(matchers, 0, of_text[text])
        allowed = bits_of(matchers.masks([0]).result())
    assert of_text[b" "] not in allowed
    assert of_text[b"1"] in allowed
