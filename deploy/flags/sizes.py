"""Values as people write them: counts and sizes (4K, 12k, 1.5M, 8GiB, 500MB), ports, lists of names, JSON objects."""

import json
import re

MOST_SHOWN = 80
"""Characters of a wrong value that are shown."""

# Lower-case k, m, g are decimal and upper-case K, M, G binary, as vLLM reads `--max-model-len`.
_COUNT_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_BYTE_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12} | {
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")


def parse_count(text: str) -> int:
    """`4096`, `4K` (4096), `12k` (12000), `1.5k`. Raises `ValueError`."""
    return _parse(text, _COUNT_UNITS, "a whole number, also like 4K (4096) or 12k (12000)")


def parse_length(text: str) -> int:
    """A count; 0 for `auto` and `-1`, as vLLM says "what model and memory allow". Raises `ValueError`."""
    return 0 if text in ("auto", "-1") else parse_count(text)


def parse_bytes(text: str) -> int:
    """`8GiB`, `500MB`, `1.5 GiB`, a plain number of bytes, or a count's suffix (`8G` is 8 GiB). Raises `ValueError`."""
    match = _NUMBER.fullmatch(text.strip())
    unit = match[2] if match else ""
    units = _COUNT_UNITS if unit in _COUNT_UNITS else {**_BYTE_UNITS, unit: _BYTE_UNITS.get(unit.lower(), 0)}
    return _parse(text, units, "a size like 8GiB, 500MB or a number of bytes")


def parse_number(text: str) -> float:
    """A number like 0.9. Raises `ValueError`."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"expected a number, got {text!r}") from None


def parse_seed(text: str) -> int:
    """Any 64-bit integer. Raises `ValueError`."""
    try:
        seed = int(text)
    except ValueError:
        seed = 1 << 63
    if not -(1 << 63) <= seed < 1 << 63:
        raise ValueError(f"expected a 64-bit integer, got {text!r}")
    return seed


def shown(text: str) -> str:
    """A wrong value, cut: JSON may be as long as a command line."""
    return repr(text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}...")


def parse_object(text: str) -> str:
    """A JSON object, as it was written. Raises `ValueError`."""
    try:
        is_object = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise ValueError(f"expected a JSON object like '{{\"name\": 0.5}}', got {shown(text)}")
    return text


def parse_port(text: str) -> int:
    """A port, 0 for any free one, -1 for none. Raises `ValueError`."""
    if not re.fullmatch(r"-1|[0-9]{1,5}", text) or int(text) > 65_535:
        raise ValueError(f"expected a port in [0, 65535], or -1 for none, got {text!r}")
    return int(text)


def parse_names(text: str) -> tuple[str, ...]:
    """One name, or several as a JSON list (`["a", "b"]`). Raises `ValueError`."""
    if not text.startswith("["):
        return (text,)
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"expected a name or a JSON list of names, got {text!r}")
    return tuple(names)


def _parse(text: str, units: dict[str, int], expected: str) -> int:
    match = _NUMBER.fullmatch(text.strip())
    factor = units.get(match[2], 0) if match else 0
    if match is None or factor == 0:
        raise ValueError(f"expected {expected}, got {text!r}")
    whole, _, fraction = match[1].partition(".")
    # integers only: a float would lose the last bytes of large sizes
    value, rest = divmod(int(whole + fraction) * factor, int("1" + "0" * len(fraction)))
    if rest:
        raise ValueError(f"expected {expected}, got {text!r}, which is not whole")
    return value
