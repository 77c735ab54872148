"""Read fields of a config.json with their types checked; ModelError names the field that is wrong."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast, get_args

from quire.worker.weights.parts import ModelError

Config = Mapping[str, Any]

Gate = Literal["silu", "gelu", "gelu_tanh"]
"""Activation of a gate."""
ExpertGate = Literal[Gate, "swigluoai"]
"""Gate of experts."""
Activation = Literal[Gate, "gelu_quick"]
"""Activation of a layer without a gate."""
Kind = TypeVar("Kind", Gate, Activation)
DtypeName = Literal["float32", "float16", "bfloat16"]
DTYPES: Final[tuple[DtypeName, ...]] = get_args(DtypeName)
ITEM_BYTES: Final[dict[DtypeName, int]] = {"float32": 4, "float16": 2, "bfloat16": 2}

ACTIVATIONS: Final[dict[str, Gate]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
}
"""`hidden_act` of the config -> the gate's activation."""
UNGATED: Final[dict[str, Activation]] = {**ACTIVATIONS, "quick_gelu": "gelu_quick"}
"""The same of a layer without a gate."""

MAX_INTEGER: Final = (1 << 31) - 1
"""Most of any size or count: a typing error beyond it must not become memory."""
MAX_LAYERS: Final = 4096
"""Most layers: each is a value of its own."""
MAX_EXPERTS: Final = 1024
"""Most experts of a layer: of no more a token's are chosen."""
MAX_EXPERTS_TOGETHER: Final = 1 << 18
"""Most experts of all layers."""
MAX_WIDTH: Final = 1 << 20
"""Most numbers of a row: the product of two is still a size that can be counted in bytes."""
MAX_HEADS: Final = 1 << 14
"""Most heads of a layer, and most numbers of a head."""
MAX_PATCH: Final = 1 << 12
"""Most pixels of a patch's side."""
MAX_MERGED: Final = 1 << 5
"""Most patches of the side of what is merged."""
MOST: Final[Mapping[str, int]] = {
    **dict.fromkeys(("hidden_size", "embed_dim", "mm_embed_dim", "out_hidden_size", "output_proj_dims"), MAX_WIDTH),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size"), MAX_WIDTH),
    **dict.fromkeys(("position_embedding_size", "mm_posemb_size", "num_position_embeddings", "image_size"), MAX_WIDTH),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "num_heads", "head_dim"), MAX_HEADS),
    "patch_size": MAX_PATCH,
    **dict.fromkeys(("temporal_patch_size", "spatial_merge_size", "pooling_kernel_size", "mlp_ratio"), MAX_MERGED),
}
"""Field -> its most, in every config that states it: torch cannot count the bytes of some products of larger ones."""
MOST_SHOWN: Final = 64
"""Characters of a wrong value that are shown."""


def integer(config: Config, name: str, default: int | None = None, most: int | None = None) -> int:
    """A positive integer up to `most`, by default the field's own; without `default` the field must be there."""
    value = config.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(name, f"config.json must state a positive integer, got {shown(value)}")
    most = MOST.get(name, MAX_INTEGER) if most is None else most
    if value > most:
        raise ModelError(name, f"must be at most {most}, got {shown(value)}")
    return value


def num_layers(config: Config) -> int:
    """The number of layers."""
    return integer(config, "num_hidden_layers", most=MAX_LAYERS)


def count(config: Config, name: str) -> int:
    """A whole number that may be zero, and must be there."""
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ModelError(name, f"config.json must state a whole number, got {shown(value)}")
    return value


def number(config: Config, name: str, default: float | None = None) -> float:
    """A positive number, neither infinite nor NaN; without `default` the field must be there."""
    value = config.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise ModelError(name, f"config.json must state a positive number, got {shown(value)}")
    return float(value)


def flag(config: Config, name: str, default: bool) -> bool:
    """true or false; null is the default."""
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ModelError(name, f"config.json must state true or false, got {shown(value)}")
    return value


def counts(config: Config, name: str, default: tuple[int, ...], most: int) -> tuple[int, ...]:
    """A list of whole numbers up to `most`; null is the default."""
    value = config.get(name)
    if value is None:
        return default
    numbers = value if isinstance(value, list) else [None]
    if any(isinstance(one, bool) or not isinstance(one, int) or not 0 <= one <= most for one in numbers):
        raise ModelError(name, f"must be a list of whole numbers up to {most}, got {shown(value)}")
    return tuple(numbers)


def section(config: Config, name: str) -> Config:
    """An object within a config, which must be there."""
    value = config.get(name)
    if not isinstance(value, dict):
        raise ModelError(name, f"config.json must state an object, got {shown(value)}")
    return value


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Errors of a section's fields get its name in front."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{name}.{error.field}", error.message) from error


def token_ids(config: Config, name: str) -> tuple[int, ...]:
    """One id, a list of ids, or null for none."""
    value = config.get(name)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= MAX_INTEGER for token in ids):
        raise ModelError(name, f"must be a token id or a list of them, got {shown(value)}")
    return tuple(ids)


def activation(config: Config, default: str, name: str = "hidden_act") -> Gate:
    """The activation of a gate that a field names."""
    return _activation(config, default, name, ACTIVATIONS)


def ungated_activation(config: Config, default: str, name: str = "hidden_act") -> Activation:
    """The activation of a layer without a gate that a field names."""
    return _activation(config, default, name, UNGATED)


def _activation(config: Config, default: str, name: str, known: Mapping[str, Kind]) -> Kind:
    stated = config.get(name, default)
    if not isinstance(stated, str) or stated not in known:
        raise ModelError(name, f"{shown(stated)} is not supported; supported: {', '.join(known)}")
    return known[stated]


def dtype_name(config: Config) -> Any:
    """The dtype config.json states under the new name or the old one; None if it leaves it out."""
    return config.get("dtype") or config.get("torch_dtype")


def checkpoint_dtype(config: Config) -> DtypeName:
    """Dtype of the checkpoint: float32 if nothing states it."""
    name = dtype_name(config) or "float32"
    if name not in DTYPES:
        raise ModelError("dtype", f"{shown(name)} is not supported; supported: {', '.join(DTYPES)}")
    return cast(DtypeName, name)


def shown(value: object) -> str:
    """A wrong value, cut: a config may hold a million of anything."""
    text = "a number of hundreds of digits" if isinstance(value, int) and value.bit_length() > 999 else repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def architecture_of(config: Config) -> str:
    """The first of the architectures that config.json states; empty without one."""
    stated = config.get("architectures")
    return str(stated[0]) if isinstance(stated, list) and stated else ""


def read_config(model_dir: Path) -> dict[str, Any]:
    """Fields of config.json. Raises ModelError where it is missing or does not read."""
    return read_json(model_dir / "config.json")


def read_json(path: Path) -> dict[str, Any]:
    """An object of a file. Raises ModelError where it is missing or does not read."""
    if path.exists() and not path.is_file():  # to read a pipe or a device may never end
        raise ModelError(path.name, f"is no file in {path.parent}; give a folder in Hugging Face layout")
    try:
        content = json.loads(path.read_bytes())  # published ones hold NaN and Infinity, which are no JSON
    except FileNotFoundError:
        raise ModelError(path.name, f"not found in {path.parent}; give a folder in Hugging Face layout") from None
    except OSError as error:
        raise ModelError(path.name, f"cannot be read in {path.parent}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(path.name, f"is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(path.name, "must hold a JSON object")
    return content


def read_generation(model_dir: Path) -> dict[str, Any]:
    """Fields of generation_config.json; none without one. Raises ModelError."""
    path = model_dir / "generation_config.json"
    return read_json(path) if path.exists() else {}
