"""Structured output on a real engine: what is promised parses and validates, whatever dies meanwhile."""

import json
import os
import re
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest
from parts.clock import GUARD, eventually
from schemas import SCHEMAS

from quire.proto.api import Delta, GenerateRequest, Output, RequestError
from quire.proto.messages.params import Structured

MODEL = "deploy/model"
TAG = {
    "type": "structural_tag",
    "structures": [
        {"begin": "def one(", "schema": {"enum": [1, 2, 3]}, "end": "):"},
        {"begin": "def two(", "schema": {"type": "boolean"}, "end": "):"},
    ],
    "triggers": ["def "],
}


@pytest.fixture(scope="module")
def engine(serve):
    return serve(MODEL, "--max-num-seqs", "64")


def guided(structured: Structured, seed: int, **more: object) -> GenerateRequest:
    values = {"temperature": 1.0, "max_tokens": 1500, **more}
    return GenerateRequest(input="# The data, as text:\n", seed=seed, structured=structured, **values)


def outputs_of(engine, requests: Sequence[GenerateRequest]) -> list[Output]:
    """All at once."""
    with ThreadPoolExecutor(len(requests)) as pool:
        return [output for answer in pool.map(engine.client.generate, requests) for output in answer.outputs]


def test_the_set_holds_two_hundred_different_schemas() -> None:
    assert len({json.dumps(schema) for schema in SCHEMAS}) == len(SCHEMAS) == 200
    for schema in SCHEMAS:
        jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize(
    "schemas", [SCHEMAS[::5], pytest.param(SCHEMAS, marks=pytest.mark.thorough)], ids=["some", "all"]
)
def test_every_output_parses_and_validates_against_its_schema(engine, schemas) -> None:
    requests = [
        guided(Structured("json_schema", json.dumps(schema, ensure_ascii=number % 2 == 0)), number)
        for number, schema in enumerate(schemas)
    ]
    outputs = outputs_of(engine, requests)
    wrong = []
    for schema, output in zip(schemas, outputs, strict=True):
        assert output.finished.finish_reason == "stop", (schema, output)
        try:
            value = json.loads(output.text)
            jsonschema.validate(value, schema, jsonschema.Draft202012Validator)
        except ValueError as error:
            wrong.append((schema, output.text, error))
    assert wrong == []
    assert len({output.text for output in outputs}) > len(schemas) // 2, "the texts differ as their schemas do"


@pytest.mark.parametrize(
    ("structured", "pattern"),
    [
        (Structured("regex", "[a-c]{3}-(x|yz)+-[0-9]{2}"), r"[a-c]{3}-(x|yz)+-[0-9]{2}"),
        (Structured("regex", "^é{1,5}(, ü){2}$"), r"é{1,5}(, ü){2}"),
        (Structured("choice", '["red", "green apple", "grün"]'), r"red|green apple|grün"),
        (Structured("grammar", 'root ::= "<" item ("," item)? ">"\nitem ::= [0-9] [0-9]'), r"<\d\d(,\d\d)?>"),
        (Structured("grammar", 'start: "(" WORD ")"\nWORD: /[a-z]{1,9}/'), r"\([a-z]{1,9}\)"),
        (Structured("json_object"), r"(?s)\{.*\}"),
    ],
)
def test_every_kind_of_constraint_holds(engine, structured: Structured, pattern: str) -> None:
    # how long a free object gets is up to the model
    for output in outputs_of(engine, [guided(structured, seed, max_tokens=300) for seed in range(4)]):
        if output.finished.finish_reason == "stop":
            assert re.fullmatch(pattern, output.text), output.text
        else:
            assert structured.kind == "json_object"


def test_what_follows_a_trigger_is_one_of_its_structures(engine) -> None:
    structured = Structured("structural_tag", json.dumps(TAG))
    code = "class Numbers:\n    def add(self, other):\n        return self.value + other\n\n" * 3
    requests = [
        GenerateRequest(input=code, seed=seed, structured=structured, temperature=0.7, max_tokens=80)
        for seed in range(6)
    ]
    tags = [tag for output in outputs_of(engine, requests) for tag in re.findall(r"def (.{6})", output.text)]
    assert tags
    assert all(re.match(r"one\([123]\)|two\((tr|fa)", tag) for tag in tags), tags


def test_each_of_several_outputs_follows_the_grammar_by_itself(engine) -> None:
    answer = engine.client.generate(guided(Structured("regex", "[a-z]{12}!"), seed=5, n=5))
    texts = [output.text for output in answer.outputs]
    assert all(re.fullmatch("[a-z]{12}!", text) for text in texts)
    assert len(set(texts)) == 5


@pytest.mark.parametrize(
    ("structured", "said"),
    [
        (Structured("json_schema", "{"), "no JSON"),
        (Structured("json_schema", '"word"'), "a schema is"),
        (Structured("json_schema", '{"type": "objekt"}'), "objekt"),
        (Structured("json_schema", '{"$ref": "https://example.com/schema"}'), "example.com"),
        (Structured("json_schema", '{"contains": {"type": "null"}}'), "contains"),
        (Structured("json_schema", '{"type": "string", "minLength": 3, "maxLength": 2}'), "Unsatisfiable"),
        (Structured("json_schema", '{"$ref": "#"}'), "allows no output"),
        (Structured("json_schema", '{"items":' * 40 + "{}" + "}" * 40), "levels deep"),
        (Structured("regex", "(a"), "unclosed"),
        (Structured("regex", ""), "empty"),
        (Structured("choice", "[]"), "1 to 1024"),
        (Structured("choice", '["a", ""]'), "entry 1"),
        (Structured("grammar", "root ::= nowhere"), "nowhere"),
        (Structured("grammar", "root ::= root"), "allows no output"),
        (Structured("structural_tag", '{"structures": []}'), "triggers"),
    ],
)
def test_a_bad_grammar_is_that_requests_own_fault(engine, structured: Structured, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        engine.client.generate(guided(structured, 1))
    assert caught.value.reason == "INVALID_GRAMMAR"
    assert caught.value.field == "structured"


def test_a_worker_killed_in_mid_stream_changes_no_text(engine) -> None:
    schema = {
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": 9999},
        "minItems": 60,
        "maxItems": 60,
    }
    requests = [
        *(guided(Structured("regex", "([a-z]{2,9} ){80}[.]"), seed) for seed in range(3)),
        *(guided(Structured("json_schema", json.dumps(schema)), seed) for seed in range(2)),
        guided(Structured("json_schema", json.dumps(schema)), seed=9, n=2),
    ]
    undisturbed = [output.text for output in outputs_of(engine, requests)]
    started = [threading.Event() for _ in requests]

    def stream(number: int) -> list[str]:
        texts: dict[int, str] = {}
        for event in engine.client.stream(requests[number]):
            if isinstance(event, Delta):
                texts[event.output_index] = texts.get(event.output_index, "") + event.text
                if len(texts[event.output_index]) > 20:
                    started[number].set()
        return [text for _, text in sorted(texts.items())]

    epoch = engine.load().epoch
    with ThreadPoolExecutor(len(requests)) as pool:
        streams = [pool.submit(stream, number) for number in range(len(requests))]
        assert all(event.wait(GUARD) for event in started)
        os.kill(engine.pids("worker")[0], signal.SIGKILL)
        disturbed = [text for reading in streams for text in reading.result(GUARD)]
    assert engine.load().epoch == epoch + 1
    assert disturbed == undisturbed
    eventually(engine.idle)
