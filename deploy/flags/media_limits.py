"""The values of `--limit-mm-per-prompt`, as vLLM's users write them."""

import json
import re

from quire.deploy.flags.sizes import shown

_PAIRS = re.compile(r"\w+=[0-9]{1,9}(,\w+=[0-9]{1,9})*")
EXPECTED = 'expected image=8,video=1, or a JSON object like {"image": 8} or {"image": {"count": 8}}'
SIZES = frozenset({"count", "width", "height", "length", "num_frames"})
"""Fields beside `count`: by the others vLLM measures memory. Here the largest image is what is measured."""


def parse_media_limits(text: str) -> str:
    """The limits by kind, as JSON like `{"image": 8}`. Raises `ValueError`."""
    if _PAIRS.fullmatch(text):
        return json.dumps({kind: int(most) for kind, most in (pair.split("=") for pair in text.split(","))})
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise ValueError(f"{EXPECTED}, got {shown(text)}")
    limits = {}
    for kind, stated in given.items():
        if isinstance(stated, dict):
            if unknown := set(stated) - SIZES:
                raise ValueError(f"{EXPECTED}; {sorted(unknown)[0]!r} is nothing that {kind!r} takes")
            stated = stated.get("count")
        if not isinstance(stated, int) or isinstance(stated, bool):
            raise ValueError(f"{EXPECTED}, got {stated!r} for {kind!r}")
        limits[kind] = stated
    return json.dumps(limits)
