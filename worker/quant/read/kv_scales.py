"""Scales of a cache of 8-bit floats: the tensors that hold them, under the names that several tools gave them.

Source: vLLM's model_loader/weight_utils.py (maybe_remap_kv_scale_name) and layers/quantization/kv_cache.py.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

from quire.worker.quant.read.headers import SCALES
from quire.worker.quant.read.stated import REMEDY
from quire.worker.weights.header import TensorInfo
from quire.worker.weights.parts import ModelError

NAME: Final = re.compile(
    r"(.*\.)?layers\.(?P<layer>\d{1,6})\.(self_attn|attention|attn|mixer)\."
    r"(?P<scale>(attn\.)?(kv|[qkv]|prob|prob_output)_scale|[qkv]_proj\.(output|[qkv])_scale|qk(qk)?v_proj\.(kv|[qkv])_scale)"
)
"""Those of queries and of probabilities, too, which stay as they are: attention multiplies in the model's type."""


def _names(one: str) -> tuple[str, ...]:
    """The names of scales of keys, "k", or of values, "v"; the last ones hold for both."""
    own, both = ([f"{module}{of}_scale" for module in ("", "attn.", "qkv_proj.", "qkqkv_proj.")] for of in (one, "kv"))
    return (*own, f"{one}_proj.{one}_scale", f"{one}_proj.output_scale", *both)


OF_KEYS, OF_VALUES = _names("k"), _names("v")


@dataclass(frozen=True, slots=True)
class StoredKVScales:
    """Names in the file of one layer's scales; None: it holds none. A cached number is the code times the scale."""

    key: str | None
    value: str | None


def kv_scale_names(names: Iterable[str]) -> frozenset[str]:
    """Those of scales for attention and its cache."""
    return frozenset(name for name in names if NAME.fullmatch(name))


def stored_kv_scales(infos: Mapping[str, TensorInfo], num_kv_heads: Mapping[int, int]) -> dict[int, StoredKVScales]:
    """The scales of each layer that has any; `num_kv_heads`: of every layer of the model, by its number.

    Raises ModelError for two scales of one thing, and for one that is neither a number nor one for each head.
    """
    found: dict[int, dict[str, str]] = {}
    for name in infos:
        if (match := NAME.fullmatch(name)) is not None:
            found.setdefault(int(match["layer"]), {})[match["scale"]] = name
    scales = {}
    for layer, heads in num_kv_heads.items():
        held = found.get(layer, {})
        key, value = (_found(held, names, heads, infos) for names in (OF_KEYS, OF_VALUES))
        if key is not None or value is not None:
            scales[layer] = StoredKVScales(key, value)
    return scales


def _found(
    held: Mapping[str, str], names: tuple[str, ...], num_kv_heads: int, infos: Mapping[str, TensorInfo]
) -> str | None:
    found = [held[name] for name in names if name in held]
    if not found:
        return None
    if len(found) > 1:
        raise ModelError(found[0], f"is a second scale of what {found[1]} is for; {REMEDY}")
    info = infos[found[0]]
    if info.dtype not in SCALES:
        raise ModelError(found[0], f"is {info.dtype}, and must be one of {', '.join(SCALES)}; {REMEDY}")
    if sum(length != 1 for length in info.shape) > 1 or prod(info.shape) not in (1, num_kv_heads):
        shape = list(info.shape)[:8]
        message = f"has shape {shape}, and must be one number, or one for each of {num_kv_heads} heads; {REMEDY}"
        raise ModelError(found[0], message)
    return found[0]
