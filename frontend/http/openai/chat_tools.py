"""The tools of a chat, and the choice among them, as OpenAI writes both."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from quire.frontend.http.fields.conversation import Function
from quire.frontend.http.fields.tagged import read_tagged
from quire.frontend.parsing.tools.forced import NAMED
from quire.proto.messages.params import ParameterError


class FunctionTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    function: Function


class NamedFunction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str


class AllowedTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["function"]
    function: NamedFunction


class AllowedTools(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Those of the tools that may be called; the others are not shown to the model."""

    mode: Literal["auto", "required"]
    tools: list[AllowedTool]

    def among(self, functions: Mapping[str, Function]) -> dict[str, Function]:
        """Those of `functions`, which stand at their paths. Raises `ParameterError` for one that is not there."""
        known = {one.name for one in functions.values()}
        for index, allowed in enumerate(self.tools):
            if (name := allowed.function.name) not in known:
                path = f"tool_choice.allowed_tools.tools[{index}].function.name"
                raise ParameterError(path, f"{name[:64]!r} is not among tools; add it there, or leave it out here")
        names = {allowed.function.name for allowed in self.tools}
        return {path: one for path, one in functions.items() if one.name in names}


class ToolChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One function by its name, or `allowed_tools`."""

    type: str
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None

    @property
    def word(self) -> str:
        """The choice as the pipeline takes it. Raises `ParameterError`."""
        if self.type == "function" and self.function is not None and self.allowed_tools is None:
            return f"{NAMED}{self.function.name}"
        if self.type == "allowed_tools" and self.allowed_tools is not None and self.function is None:
            return self.allowed_tools.mode
        if self.type in ("function", "allowed_tools"):
            raise ParameterError(f"tool_choice.{self.type}", f"must be there, alone, where type is {self.type!r}")
        wanted = "use auto, none, required, or an object of type 'function' or 'allowed_tools'"
        raise ParameterError("tool_choice.type", f"{self.type[:64]!r} is not offered here; {wanted}", "UNSUPPORTED")


def tool_functions(tools: Sequence[msgspec.Raw]) -> dict[str, Function]:
    """The functions of `tools`, by their paths. Raises `ParameterError`."""
    paths = [f"tools[{index}]" for index in range(len(tools))]
    return {
        f"{path}.function": read_tagged(raw, {"function": FunctionTool}, path).function
        for path, raw in zip(paths, tools, strict=True)
    }
