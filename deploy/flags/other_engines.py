"""Flags of other engines that quire has under no name or another, and what becomes of one with a value."""

from collections.abc import Mapping
from typing import Any, Final

from quire.deploy.flags.llama_flags import LLAMA_FLAGS
from quire.deploy.flags.meaning import DEFAULTS
from quire.deploy.flags.options import ServeOptions
from quire.deploy.flags.sglang_flags import SGLANG_FLAGS
from quire.deploy.flags.tgi_flags import TGI_FLAGS
from quire.deploy.flags.vllm_flags import VLLM_FLAGS, VllmFlag

OTHER_FLAGS: dict[str, VllmFlag] = VLLM_FLAGS | LLAMA_FLAGS | SGLANG_FLAGS | TGI_FLAGS
"""No two engines have flags of one name and another meaning."""
LONG: Final = {
    also.removeprefix("--"): name for name, flag in OTHER_FLAGS.items() for also in flag.also if also.startswith("--")
}
"""Other long spellings -> the name."""
MEANINGS: Final = {name: flag.means for name, flag in OTHER_FLAGS.items() if flag.means is not None}
"""The flags that are options of ours -> which."""


def options_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options, by field, that flags of other engines mean together; sampling defaults are an object, not its text.

    `values`: name -> value as `MEANINGS` reads it. None is the default: that goes before what a file says.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        meaning = MEANINGS[name]
        if meaning.default:
            found[meaning.field] = {**found.get(DEFAULTS, {}), meaning.default: value}
        elif meaning.field:
            found[meaning.field] = getattr(ServeOptions(), meaning.field) if value is None else value
    length, ways = values.get("ctx-size"), values.get("parallel")
    if length and ways and "kv-unified" not in values:
        found["max_model_len"] = max(1, length // ways)  # llama-server shares a context among its slots
    return found


def refusal(name: str, value: str) -> str:
    """The reason why a flag of another engine cannot be had with that value; empty where it is taken."""
    flag = OTHER_FLAGS[name]
    is_taken = flag.means or value in flag.same or (flag.speed and not flag.same)
    if is_taken:
        return ""
    expected = f"expected {', '.join(flag.same)}, got {value!r}: " if flag.speed else ""
    return f"--{name}: {expected}{flag.why}"


def notice(name: str) -> str:
    """The line about what happens instead of what the flag says; empty where nothing differs."""
    flag = OTHER_FLAGS[name]
    return f"--{name} changes no answer: {flag.why}" if flag.speed else ""
