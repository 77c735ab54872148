"""The forms of vectors in an answer: numbers, base64, or bytes with their description in a header, as vLLM has them."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
import numpy as np

Format = Literal["float", "base64", "bytes", "bytes_only"]
Dtype = Literal["float32", "float16", "bfloat16"]
Endianness = Literal["little", "big", "native"]

MAX_DESCRIBED = 128
"""Vectors whose places in the body fit into a header that clients read."""
ITEM_BYTES: Final[dict[Dtype, int]] = {"float32": 4, "float16": 2, "bfloat16": 2}
_ORDER = {"little": "<", "big": ">", "native": "="}


class Place(msgspec.Struct):
    """The place of a vector in the body, in bytes."""

    index: int
    embed_dtype: Dtype
    endianness: Endianness
    start: int
    end: int
    shape: tuple[int]


def vector_bytes(vector: Sequence[float], dtype: Dtype, endianness: Endianness) -> bytes:
    """The numbers as bytes of this type; to the nearest, and to the even one of two that are as near."""
    numbers = np.asarray(vector, np.float32)
    order = _ORDER[endianness]
    if dtype == "float32":
        return numbers.astype(f"{order}f4").tobytes()
    if dtype == "float16":
        return numbers.astype(f"{order}f2").tobytes()
    bits = numbers.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype(f"{order}u2").tobytes()


def places(count: int, width: int, dtype: Dtype, endianness: Endianness) -> list[Place]:
    """The places of vectors that stand one behind the other; `width`: numbers of each."""
    size = width * ITEM_BYTES[dtype]
    return [Place(index, dtype, endianness, index * size, (index + 1) * size, (width,)) for index in range(count)]
