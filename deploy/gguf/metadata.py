"""The metadata of a GGUF file, read with types checked; ModelError names the key that is wrong."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from quire.worker.weights.gguf.header import Value
from quire.worker.weights.parts import ModelError

MAX_INTEGER: Final = (1 << 31) - 1
MAX_NUMBER: Final = 3.4e38
REMEDY: Final = "choose another file, or the safetensors checkpoint"


class Metadata:
    """Keys of a file. A default stands for a key that is not there; without one the key must be."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def under(self, prefix: str) -> list[str]:
        """The keys that begin so."""
        return [key for key in self._values if key.startswith(prefix)]

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        value = self._values.get(key, default)
        if type(value) is not int or not least <= value <= MAX_INTEGER:
            raise _wrong(key, value, f"a whole number in [{least}, {MAX_INTEGER}]")
        return value

    def token(self, key: str) -> int | None:
        """The id of a token; None where it is not said."""
        return self.integer(key, least=0) if key in self._values else None

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number, neither infinite nor NaN."""
        value = self._values.get(key, default)
        if type(value) not in (int, float) or not isinstance(value, int | float) or not 0 < value <= MAX_NUMBER:
            raise _wrong(key, value, "a positive number")
        return shortest(float(value))

    def real(self, key: str) -> int | float:
        """Any number but infinite ones and NaN."""
        value = self._values.get(key)
        if type(value) is int:
            return value
        if type(value) is not float or not abs(value) <= MAX_NUMBER:
            raise _wrong(key, value, "a number")
        return shortest(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise _wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._values.get(key, default)
        if not isinstance(value, str):
            raise _wrong(key, value, "a text")
        return value

    def texts(self, key: str) -> list[str]:
        value = self._values.get(key)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise _wrong(key, value, "a list of texts")
        return [str(one) for one in value]

    def integers(self, key: str) -> list[int]:
        value = self._values.get(key)
        if not isinstance(value, list) or not all(type(one) is int for one in value):
            raise _wrong(key, value, "a list of whole numbers")
        return [int(one) for one in value]

    def numbers(self, key: str) -> list[float]:
        """Finite numbers."""
        value = self._values.get(key)
        if not isinstance(value, list) or not all(isinstance(one, float) and abs(one) <= MAX_NUMBER for one in value):
            raise _wrong(key, value, "a list of finite numbers")
        return [float(one) for one in value]


def shortest(value: float) -> float:
    """The number with the fewest digits that 32 bits hold alike, as 1e-05; one of 64 bits stays as it is."""
    short = np.float32(value)
    return float(str(short)) if float(short) == value else value


def _wrong(key: str, value: object, wanted: str) -> ModelError:
    if value is None:
        return ModelError(key, f"is not there, and must be {wanted}; {REMEDY}")
    given = f"a list of {len(value)}" if isinstance(value, list) else repr(value)[:64]
    return ModelError(key, f"must be {wanted}, got {given}; {REMEDY}")
