"""The wish of a chat about reasoning, among the variables of its template."""

from collections.abc import Mapping
from typing import Any

SWITCHES = ("enable_thinking", "thinking")
"""Names that templates have for the switch of reasoning."""
EFFORT, NO_EFFORT = "reasoning_effort", "none"


def wanted(variables: Mapping[str, Any]) -> bool | None:
    """True where the model is to reason, False where it is not to; None: as the template has it."""
    for name in SWITCHES:
        if isinstance(variables.get(name), bool):
            return bool(variables[name])
    return False if variables.get(EFFORT) == NO_EFFORT else None
