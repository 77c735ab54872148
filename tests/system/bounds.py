"""Every bounded field of a request: a value at its bound, values beyond it, and what the refusal must name."""

import json
from typing import Any

from quire.proto.api import Chat, ChatMessage, Tool
from quire.proto.messages.params import Structured

USER = ChatMessage("user", "hi")
TEXT = json.dumps({"type": "string", "description": ""})
BOUNDS: dict[str, tuple[Any, list[Any], str]] = {
    "n": (64, [65, 10**9, 0, -1], "64"),
    "best_of": (64, [65, 10**9, 0, -1], "64"),
    "logprobs": (20, [21, 10**9, -1], "20"),
    "prompt_logprobs": (20, [21, 10**9, -1], "20"),
    "max_tokens": (254, [255, 10**9, 0, -1], "256|1"),
    "min_tokens": (16, [17, 10**9, -1], "16"),
    "top_k": (10**9, [-2, -(10**9)], "0"),
    "seed": (2**63 - 1, [2**63, -(2**63) - 1], ""),
    "truncate_prompt_tokens": (10**9, [0, -2], "1"),
    "truncation_side": ("right", ["middle", ""], "left"),
    "temperature": (2.0, [2.01, 1e9, -0.01], r"finite number in \[0, 2\]"),
    "top_p": (1.0, [1.01, 1e9, 0.0], r"finite number in \(0, 1\]"),
    "min_p": (1.0, [1.01, 1e9, -0.01], r"finite number in \[0, 1\]"),
    "repetition_penalty": (100.0, [100.01, 1e9, 0.0], r"finite number in \(0, 100\]"),
    "presence_penalty": (2.0, [2.01, 1e9, -2.01], r"finite number in \[-2, 2\]"),
    "frequency_penalty": (-2.0, [2.01, 1e9, -2.01], r"finite number in \[-2, 2\]"),
    "timeout_seconds": (3600.0, [3600.1, 1e9, 0.0], "3600"),
    "stop": (("x",) * 16, [("x",) * 17, ("x" * 257,), ("",)], "16|256"),
    "stop_token_ids": ((5,) * 128, [(5,) * 129], "129 .*128"),
    "allowed_token_ids": ((5,) * 65_536, [(5,) * 65_537], "65537 .*65536"),
    "logit_bias": ({5: 100.0, 6: -100.0}, [dict.fromkeys(range(1025), 1.0), {5: 100.1}, {5: -1e9}], "1024|100"),
    "bad_words": (
        tuple(f"x{one}" for one in range(64)), [tuple(f"x{one}" for one in range(129)), ("x" * 257,)], "128|256",
    ),
    "cache_salt": ("s" * 128, ["s" * 129, ""], "128"),
    "request_id": ("r" * 128, ["r" * 129, "", "a b", "a\n", "\x1b[2J", "a\x7f", "\x9b2J", "\u202ea", "é"], "128"),
    "structured": (
        Structured("json_schema", TEXT[:-2] + "x" * (65_536 - len(TEXT)) + TEXT[-2:]),
        [Structured("choice", json.dumps(["a"] * 1025))], "1024",
    ),
    "tools": (
        Chat([USER], tools=[Tool(f"f{one}".ljust(128, "x")) for one in range(128)], tool_choice="none"),
        [Chat([USER], tools=[Tool(f"f{one}") for one in range(129)]), Chat([USER], tools=[Tool("x" * 129)])], "128",
    ),
    "template_kwargs": (
        Chat([USER], template_kwargs=json.dumps({f"a{one}": "x" * 4096 for one in range(32)})),
        [
            Chat([USER], template_kwargs=json.dumps({f"a{one}": 1 for one in range(33)})),
            Chat([USER], template_kwargs=json.dumps({"a": "x" * 4097})),
        ],
        "32|4096",
    ),
    "messages": (Chat([USER]), [Chat([USER] * 4097), Chat([ChatMessage("x" * 65, "x")])], "4096|64|enum"),
}  # fmt: skip
