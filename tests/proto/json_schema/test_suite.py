"""The test suite of JSON Schema itself (2020-12, MIT): no grammar allows a value that the suite calls wrong.

A schema that is refused names a place. Values that are right may be refused: an object that lists keys is closed.
"""

import json
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from parts.schema_walks import is_allowed, matcher, spellings

from quire.proto.messages.params import ParameterError

GROUPS = [json.loads(line) for line in (Path(__file__).parent / "data/suite.jsonl").read_text().splitlines()]
BY_FILE = {name: list(groups) for name, groups in groupby(GROUPS, key=lambda group: group[0])}
FEW_SPACES = ("optional/ecmascript-regex", "\ufeff")
"""The library's `\\S` finds one character that is white space to ECMAScript only."""
UNCHECKED = {
    f"optional/format/{name}" for name in ("idn-email", "idn-hostname", "iri", "iri-reference", "regex", "uri-template")
}
"""Formats that nobody checks here."""


def compiled(schema: Any) -> Any:
    try:
        return matcher(schema)
    except ParameterError as error:
        return str(error)


def outcomes(name: str) -> Iterator[tuple[str, Any, bool, bool]]:
    """(group, value, whether the suite calls it right, whether the grammar allows it) where there is a grammar."""
    for _, description, schema, tests in BY_FILE[name]:
        start = compiled(schema)
        if isinstance(start, str):
            assert re.match(r"structured: json_schema: (#|allows no output)", start), start
        else:
            for value, is_right in tests:
                yield description, value, is_right, any(is_allowed(start, text) for text in spellings(value))


@pytest.mark.parametrize("name", BY_FILE)
def test_no_wrong_value_is_allowed(name: str) -> None:
    if name in UNCHECKED:
        return
    wrong = [found for found in outcomes(name) if found[3] and not found[2]]
    assert [found for found in wrong if (name, found[1]) != FEW_SPACES] == []
