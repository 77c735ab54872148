"""A JSON text is looked at before it becomes values: names given twice, and how much it holds."""

import msgspec
import pytest

from quire.frontend.limits.json_scan import MAX_PARTS, VALUES_PER_PART, scan
from quire.proto.messages.params import ParameterError
from quire.proto.stopped import Stopped


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"a": 1, "a": 2}', "a"),
        ('{"a": {"b": 1}, "c": [{"b": 1}, {"b": 2, "b": 3}]}', "b"),
        (r'{"a": 1, "\u0061": 2}', "a"),
        ('{"a\\"": 1, "a\\"" : 2}', 'a"'),
        ('{"": 1, "" \n: 2}', "body"),
        ('{"a": "a", "b": ["a", "a"], "a": 1}', "a"),
        ('{"x": "{\\"a\\": 1, \\"a\\": 2}", "y": {}, "y": 0}', "y"),
    ],
)
def test_a_name_given_twice_is_found_however_it_is_spelled(text, name):
    msgspec.json.decode(text)
    with pytest.raises(ParameterError, match="given twice") as caught:
        scan(text.encode(), "body")
    assert caught.value.field == name


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "a", "b": "a"}',
        '["a", "a", {"a": 1}, {"a": 2}]',
        '{"a": {"a": {"a": 1}}}',
        '"\\\\"',
        '{"a\\\\": 1, "a": 2}',
        '{"a": "b\\\\", "b": 1}',
        '{"a": "}", "b": "{", "c": "\\"}"}',
        "3",
        "",
        '{"a": [1, 2, 3], "b": "]"}',
    ],
)
def test_names_of_other_objects_and_what_stands_in_strings_are_not_counted(text):
    scan(text.encode(), "body")


@pytest.mark.parametrize(
    "text", ["}", '{"a": "', '{"a": "\\', '{"a": 1}}}, {"b": 1, "b": 2', '"\\u12', '{"\\x": 1, "\\x": 2}']
)
def test_what_is_no_json_is_left_to_the_parser(text):
    scan(text.encode(), "body")
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(text)


@pytest.mark.parametrize("piece", ["{}", "[]", '""', '{"a":0}'])
def test_what_a_body_may_hold_is_bounded_before_it_is_parsed(piece):
    most = MAX_PARTS - 1 if len(piece) == 2 else MAX_PARTS // 2 - 1
    scan(f"[{','.join([piece] * most)}]".encode(), "body")
    with pytest.raises(ParameterError, match=f"more than {MAX_PARTS} objects, lists, names and texts"):
        scan(f"[{','.join([piece] * (most + 1))}]".encode(), "body")


def test_a_million_numbers_are_taken_and_no_more():
    scan(b"[" + b"1," * (1 << 20) + b"1]", "body")
    with pytest.raises(ParameterError, match=f"more than {MAX_PARTS * VALUES_PER_PART} values"):
        scan(b"[" + b"1," * (MAX_PARTS * VALUES_PER_PART + 1) + b"1]", "body")


def test_a_scan_stops_when_nobody_waits():
    asked = []

    def is_stopped() -> bool:
        asked.append(1)
        return len(asked) > 10

    with pytest.raises(Stopped):
        scan(b"[" + b"{}," * 1000 + b"{}]", "body", is_stopped=is_stopped)
    assert len(asked) == 11
