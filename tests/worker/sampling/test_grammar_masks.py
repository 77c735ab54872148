"""Masks of rows with a grammar equal what the language allows, whatever an output went through."""

import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from parts.clock import GUARD

from quire.proto.messages.params import SamplingParams, Structured
from quire.proto.messages.plans import Admit, StepPlan
from quire.proto.messages.structured import load_vocabulary, new_matcher
from quire.proto.transport.wire import ints
from quire.worker.device.device import Device
from quire.worker.sampling import grammar_masks
from quire.worker.sampling.grammar_masks import GrammarMatchers

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from grammar_rows import CPU, END, PROMPT, WIDTH


def admit(slot, structured, prompt=PROMPT, output=(), **params):
    asked = SamplingParams(structured=structured, max_tokens=100, **params)
    tokens = [*prompt, *output]
    return Admit(slot, ints(tokens), len(prompt), len(tokens) - 1, 0, asked, (ints([0, 1, 2, 3]),))


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
    # a special token's text is text: no token stands for it
    (Structured("choice", '["a<|end|>b", "<|end|>", "a"]'), {"a<|end|>b", "<|end|>", "a"}),
    (Structured("regex", r"a{2}<\|end\|>"), {"aa<|end|>"}),
    (Structured("regex", r"(a|b)<[|]e{1}(nd)[|]>b"), {"a<|end|>b", "b<|end|>b"}),
    (Structured("json_schema", '{"const": {"\\u003c|end|>": 1}}'), {f'{{"<|end|>":{s}1}}' for s in ("", " ")}),
    (Structured("json_schema", '{"type": "string", "pattern": "^<[|]end[|]>$"}'), {'"<|end|>"'}),
    (Structured("grammar", 'start: "a" "<|" "end|>"'), {"a<|end|>"}),
    (Structured("grammar", 'start: "a" OPEN END\nOPEN: "<" /[|]e/\nEND: "nd|>"'), {"a<|end|>"}),
    (Structured("grammar", '%llguidance {"no_forcing": false}\nstart: "a<|end|>"'), {"a<|end|>"}),
    (
        Structured("grammar", '%llguidance {"allow_initial_skip": true}\nstart: "a"\n%ignore " "'),
        {f"{' ' * n}a" for n in range(60)},
    ),
    (Structured("grammar", '?start: "a" | "b::"'), {"a", "b::"}),
    (Structured("grammar", "start[lazy]: /a{1,3}b/"), {"ab", "aab", "aaab"}),
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


WALK = """
import sys
from pathlib import Path
from quire.proto.messages.params import Structured
from quire.proto.messages.structured import load_vocabulary, new_matcher
vocabulary = load_vocabulary(Path(sys.argv[1]), int(sys.argv[2]), (int(sys.argv[3]),))
matcher = new_matcher(vocabulary, Structured("grammar", 'start: "c" | "b" /a+/ /a+b/'))
for token in vocabulary.tokenize_str("baaa"):
    mask = matcher.compute_bitmask()
    assert mask[token >> 3] >> (token & 7) & 1
    assert matcher.consume_token(token)
"""


def test_rules_of_a_client_are_not_followed_forever_to_where_they_must_lead(folder) -> None:
    """In a process that can be killed: the library would not come back."""
    command = [sys.executable, "-c", WALK, str(folder), str(WIDTH), str(END)]
    walked = subprocess.run(command, capture_output=True, text=True, timeout=GUARD)
    assert walked.returncode == 0, walked.stderr


def test_special_tokens_begin_and_end_structures_where_their_texts_are_named(folder, texts) -> None:
    tags = {"structures": [{"begin": "ab<|end|>", "schema": {"const": 1}, "end": "<|end|>c"}], "triggers": ["ab"]}
    matchers = GrammarMatchers(folder, WIDTH, (END + 1,), 1, CPU)
    matchers.apply(plan(admit(0, Structured("structural_tag", json.dumps({"type": "structural_tag", **tags})))))
    of_text = {text: token for token, text in texts.items()}
    for token in (of_text[b"a"], of_text[b"b"], END, of_text[b"1"], END, of_text[b"c"]):
        assert token in bits_of(matchers.masks([0]).result())
        told(matchers, 0, token)
    assert END + 1 in bits_of(matchers.masks([0]).result())


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


@pytest.mark.parametrize("beside", [False, True])
def test_a_grammar_for_which_others_wait_too_long_ends_alone(folder, texts, monkeypatch, beside) -> None:
    """Rules that read a text in many ways take longer with each token. Its masks stay those of the other ranks."""
    monkeypatch.setattr(grammar_masks, "FREE_SECONDS", 0.001)
    monkeypatch.setattr(grammar_masks, "MAX_SECONDS", 0.05)
    monkeypatch.setattr(Device, "works_beside", beside)
    ways, one = Structured("grammar", 'start: e\ne: e e | "a" | "b"'), Structured("json_schema", '{"type": "string"}')
    matchers = GrammarMatchers(folder, WIDTH, (END,), 3, CPU)
    matchers.apply(plan(admit(0, ways), admit(1, one), admit(2, ways)))
    unwatched = new_matcher(load_vocabulary(folder, WIDTH, (END,)), ways)
    of_text = {text: token for token, text in texts.items()}
    for length in range(300):
        masks = matchers.masks([1, 2]).result()
        assert masks.bits[1].tobytes()[: WIDTH // 8] == unwatched.compute_bitmask()[: WIDTH // 8]
        if masks.stuck:
            break
        told(matchers, 1, of_text[b"a" if length else b'"'])
        told(matchers, 2, of_text[b"a"])
        assert unwatched.consume_token(of_text[b"a"])
    assert masks.stuck == (1,)
    assert length > 20
    assert matchers.masks([0]).result().stuck == ()  # the same grammar, where it begins


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
