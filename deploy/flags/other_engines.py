"""Flags of other engines that quire has under no name, and what becomes of one with a value."""

from quire.deploy.flags.llama_flags import LLAMA_FLAGS
from quire.deploy.flags.sglang_flags import SGLANG_FLAGS
from quire.deploy.flags.tgi_flags import TGI_FLAGS
from quire.deploy.flags.vllm_flags import VLLM_FLAGS, VllmFlag

OTHER_FLAGS: dict[str, VllmFlag] = VLLM_FLAGS | LLAMA_FLAGS | SGLANG_FLAGS | TGI_FLAGS
"""No two engines have flags of one name and another meaning."""


def refusal(name: str, value: str) -> str:
    """The reason why a flag of another engine cannot be had with that value; empty where it is taken."""
    flag = OTHER_FLAGS[name]
    return "" if flag.speed or value in flag.same else f"--{name}: {flag.why}"


def notice(name: str) -> str:
    """The line about what happens instead of what the flag says; empty where nothing differs."""
    flag = OTHER_FLAGS[name]
    return f"--{name} changes no answer: {flag.why}" if flag.speed else ""
