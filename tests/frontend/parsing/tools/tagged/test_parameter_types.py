"""The types of a tool's parameters, read from whatever schema a client sends."""

import json

import pytest

from quire.frontend.parsing.tools.tagged.parameter_types import ParameterTypes

NODE = {"anyOf": [{"$ref": "#/$defs/node"}, {"$ref": "#/definitions/leaf"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"type": "str", "nullable": True}, {"string", "null"}),
        ({"type": "dict"}, {"object"}),
        (
            {"enum": ["a", 1, 2.5, True, None, [], {}]},
            {"string", "integer", "number", "boolean", "null", "array", "object"},
        ),
        ({"const": 3}, {"integer"}),
        ({"oneOf": [{"type": "number"}, {"allOf": [{"type": "boolean"}]}]}, {"number", "boolean"}),
        ({"$ref": "#/$defs/node"}, {"array", "null"}),
        ({"$ref": "#/$defs/nowhere"}, set()),
        ({"$ref": "https://example.org/schema"}, set()),
        ({"description": "anything"}, set()),
        ({"type": 7, "enum": "no list", "anyOf": {}}, set()),
        (True, set()),
    ],
)
def test_every_way_to_state_a_type_is_read(schema, types):
    tool = {"properties": {"p": schema}, "$defs": {"node": NODE}, "definitions": {"leaf": {"type": "array"}}}
    assert ParameterTypes(json.dumps(tool)).of("p") == types


def test_unlisted_parameters_have_the_type_of_additional_properties():
    assert ParameterTypes('{"properties": {}, "additionalProperties": {"type": "number"}}').of("p") == {"number"}
    assert ParameterTypes('{"additionalProperties": false}').of("p") == set()


@pytest.mark.parametrize("schema", ["", "[]", "not JSON", '{"properties": 3}', '{"properties": {"p": ' + "[" * 9999])
def test_a_schema_that_is_none_says_nothing(schema):
    assert ParameterTypes(schema).of("p") == set()


def test_types_are_found_through_references_of_references_however_deep():
    defs = {str(depth): {"$ref": f"#/$defs/{depth + 1}"} for depth in range(200)}
    tool = {"properties": {"p": {"$ref": "#/$defs/0"}}, "$defs": {**defs, "200": {"type": "string"}}}
    assert ParameterTypes(json.dumps(tool)).of("p") == {"string"}


def test_a_schema_whose_references_branch_is_read_once():
    defs = {str(depth): {"anyOf": [{"$ref": f"#/$defs/{depth + 1}"}] * 50} for depth in range(200)}
    tool = {"properties": {"p": {"$ref": "#/$defs/0"}}, "$defs": {**defs, "5": {"type": "string"}}}
    assert ParameterTypes(json.dumps(tool)).of("p") == {"string"}
