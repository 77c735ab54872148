"""GrammarChecker of forced calls: what they let through is exactly the calls a request insists on."""

import json

import jsonschema
import pytest

from quire.frontend.parsing.tools.forced import structured
from quire.proto.api import Chat, ChatMessage, Tool
from quire.proto.messages.params import ParameterError

TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}, "again": {"$ref": "#"}},
    "required": ["root"],
    "$defs": {"node": {"type": "object", "properties": {"left": {"$ref": "#/$defs/node"}, "v": {"type": "integer"}}}},
}
TOOLS = [Tool("plant", "", json.dumps(TREE)), Tool("now")]


def schema_of(choice: str, **more) -> dict:
    found = structured(Chat([ChatMessage("user", "x")], tools=TOOLS, tool_choice=choice, **more))
    assert found.kind == "json_schema"
    return json.loads(found.text)


def accepts(schema: dict, value: object) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def test_a_named_function_forces_its_own_schema():
    assert schema_of("function:plant") == TREE
    assert accepts(schema_of("function:now"), {})
    assert not accepts(schema_of("function:now"), {"a": 1})


def test_required_forces_calls_whose_references_still_hold():
    schema = schema_of("required")
    plant = {"name": "plant", "parameters": {"root": {"left": {"v": 1}}, "again": {"root": {}}}}
    assert accepts(schema, [plant, {"name": "now", "parameters": {}}])
    for wrong in ([], [{"name": "other", "parameters": {}}], [{"name": "plant", "parameters": {"root": {"v": "x"}}}]):
        assert not accepts(schema, wrong)
    deep = {"name": "plant", "parameters": {"root": {}, "again": {"root": {"v": "x"}}}}
    assert not accepts(schema, [deep])


def test_one_call_is_the_most_without_parallel_calls():
    now = {"name": "now", "parameters": {}}
    assert accepts(schema_of("required"), [now, now])
    assert not accepts(schema_of("required", parallel_tool_calls=False), [now, now])


def test_nothing_is_forced_otherwise():
    for choice in (None, "auto", "none"):
        assert structured(Chat([ChatMessage("user", "x")], tools=TOOLS, tool_choice=choice)) is None


def test_schemas_too_large_or_too_deep_are_the_tools_fault():
    deep = '{"items": ' * 70 + "{}" + "}" * 70
    large = json.dumps({"description": "x" * (70 << 10)})
    for parameters in (deep, large):
        with pytest.raises(ParameterError, match=r"^chat\.tools"):
            structured(Chat([ChatMessage("user", "x")], tools=[Tool("f", "", parameters)], tool_choice="required"))


NAMED = {
    "$id": "https://example.org/tool",
    "type": "object",
    "properties": {
        "a": {"$ref": "#/$defs/n"},
        "b": {"$ref": "n"},
        "c": {"$ref": "#here"},
        "$ref": {"const": {"$ref": "#/x"}},
    },
    "required": ["a", "b", "c"],
    "$defs": {"n": {"$id": "n", "$anchor": "there", "type": "null"}, "m": {"$anchor": "here", "type": "boolean"}},
}


@pytest.mark.parametrize("choice", ["required", "function:named"])
def test_a_schema_may_have_names_for_its_places(choice: str):
    tools = [Tool("named", "", json.dumps(NAMED)), Tool("other", "", json.dumps(NAMED))]
    schema = json.loads(structured(Chat([ChatMessage("user", "x")], tools=tools, tool_choice=choice)).text)
    value = {"a": None, "b": None, "c": True, "$ref": {"$ref": "#/x"}}
    for arguments in (value, {**value, "a": 1}, {**value, "b": 1}, {**value, "c": None}, {**value, "$ref": 1}):
        given = [{"name": "named", "parameters": arguments}] if choice == "required" else arguments
        assert accepts(schema, given) == (arguments == value)
