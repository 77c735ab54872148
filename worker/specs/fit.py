"""The fit of a model on a machine, by its config.json alone: what it takes, and every reason why it cannot be served.

Workers refuse the same; here it is said before any of them starts, and where there are neither weights nor a GPU.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from quire.worker.config import WorkerConfig
from quire.worker.fields import read_config
from quire.worker.quant.plan import Plan, refuse_device
from quire.worker.specs import sizes
from quire.worker.specs.encoder_pages import small_steps
from quire.worker.specs.needs import (
    Fit,
    Place,
    needs_of,
    refuse_calculation,
    refuse_encoder_memory,
    refuse_kv_dtype,
    shortages,
    too_long,
)
from quire.worker.specs.quantized import read_plan, read_stated, refuse_experts
from quire.worker.specs.registry import AnySpec, configured_spec, objections
from quire.worker.weights.header import CheckpointError
from quire.worker.weights.parts import ModelError

T = TypeVar("T")
Value = str | int | float

MIB = 1 << 20
LENGTHS = 1024
"""A length that would fit is named in such steps, where it is longer than one."""
RANKS = (2, 4, 8, 16)
SHARES = tuple(hundredths / 100 for hundredths in range(50, 98))
"""Shares of a GPU's memory that may be free on one that nobody else uses."""


def fit(config: WorkerConfig, place: Place) -> tuple[Fit | None, list[str]]:
    """The needs, as far as the config reads, and all that is refused, with fields as `WorkerConfig` names them."""
    folder, size = Path(config.model), config.tensor_parallel_size
    device_type = "cuda" if place.is_gpu else "cpu"
    try:
        refusals = [f"{folder}: {error}" for error in _objections(folder, config)]
    except (ModelError, CheckpointError) as error:
        return None, [str(error)]
    spec, wrong = _read(lambda: configured_spec(config))
    refusals += wrong
    if spec is None:
        return None, list(dict.fromkeys(refusals))
    divided = [str(error) for error in sizes.indivisible(spec, size)]
    plan, wrong = _read(lambda: read_plan(config, spec).on(device_type))
    if plan is not None:
        wrong += _unserved(folder, spec, plan, device_type, size, is_divided=not divided)
    refusals += divided + wrong
    if config.max_model_len > spec.max_model_len:
        refusals.append(too_long(config.max_model_len, spec.max_model_len))
    small, wrong = _read(lambda: small_steps(config, spec))
    refusals += [str(small)] if small is not None else [f"{folder}: {one}" for one in wrong]
    if refusals or plan is None:
        return None, list(dict.fromkeys(refusals))
    try:
        needs = needs_of(config, spec, plan, place)
    except ModelError as error:
        return None, [f"{folder}: {error}"]
    found = [
        refuse_kv_dtype(config.kv_cache_dtype, needs.dtype, is_gpu=place.is_gpu),
        refuse_encoder_memory(config, needs),
    ]
    if config.calculate_kv_scales and not (needs.kv_dtype == "fp8" and needs.token_bytes):
        found.append(str(refuse_calculation(needs.kv_dtype if needs.token_bytes else "")))
    if any(found):
        return None, [one for one in found if one]
    short = shortages(config, needs, place)
    return needs, [f"{why}; {_remedy(config, needs, plan, place)}" for why in short]


def _read(read: Callable[[], T]) -> tuple[T | None, list[str]]:
    """A part of the fit, or the reason why there is none."""
    try:
        return read(), []
    except (ModelError, CheckpointError) as error:
        return None, [str(error)]


def _unserved(folder: Path, spec: AnySpec, plan: Plan, device_type: str, size: int, *, is_divided: bool) -> list[str]:
    """Refusals of a plan on such devices; ranks are looked at where the spec divides among them."""
    found = [str(error) for error in sizes.divided_blocks(spec, plan, size)] if is_divided else []
    unserved = refuse_device(plan, device_type)
    if unserved is None and is_divided and not found:
        unserved = refuse_experts(spec, plan, device_type, size)
    if unserved is not None:
        found.append(str(unserved) if plan.on_the_fly else f"{folder}: {unserved}")
    return found


def _objections(folder: Path, asked: WorkerConfig) -> list[ModelError]:
    config = read_config(folder)
    found = objections(config, asked.model_impl)
    try:
        read_stated(folder, config)
    except ModelError as error:
        found.append(error)
    return found


def _remedy(config: WorkerConfig, needs: Fit, plan: Plan, place: Place) -> str:
    """All flags that alone would make it fit, each with its mildest value."""
    found = []
    for field, values in _knobs(config, needs, place):
        enough = next((value for value in values if _fits(config, needs.spec, plan, place, field, value)), None)
        if enough is not None:
            text = f"{int(enough) // MIB}MiB" if field == "kv_cache_memory_bytes" else enough
            found.append(f"{field}={text}")
    if not found:
        return "no flag alone makes room for it; choose a smaller model, or a larger device"
    return f"by this count it fits with {' or '.join(found)}"


def _knobs(config: WorkerConfig, needs: Fit, place: Place) -> Iterator[tuple[str, Sequence[Value]]]:
    """Fields of the configuration that memory hangs on, with other values than now, the mildest first."""
    if held := needs.kv_tokens:
        yield "max_model_len", [held // LENGTHS * LENGTHS or held]
    if asked := config.kv_cache_memory_bytes:
        ranks = 1 if place.is_gpu else config.tensor_parallel_size
        enough = [-(-needs.sequence_bytes // MIB) * MIB]
        if place.memory is not None:
            left = place.memory // ranks - needs.weight_bytes
            enough.append((left if place.is_gpu else left // 2) // MIB * MIB)  # a machine has other things to do
        enough.sort(key=lambda size: abs(size - asked))
        yield "kv_cache_memory_bytes", [size for size in enough if size > 0]
    elif place.is_gpu:
        yield "gpu_memory_utilization", [share for share in SHARES if share > config.gpu_memory_utilization]
    if config.kv_cache_dtype == "auto" and needs.token_bytes and needs.kv_dtype != "fp8":
        halved = not place.is_gpu and needs.kv_dtype == "float32"
        yield "kv_cache_dtype", ["bfloat16", "fp8"] if halved else ["fp8"]
    if place.is_gpu:
        yield "tensor_parallel_size", [size for size in RANKS if size > config.tensor_parallel_size]
        yield "quantization", ["fp8", "int4"]
    else:
        yield "dtype", ["bfloat16"]
        yield "quantization", ["int8", "int4"]


def _fits(config: WorkerConfig, spec: AnySpec, plan: Plan, place: Place, field: str, value: Value) -> bool:
    changed = msgspec.structs.replace(config, **{field: value})
    size = changed.tensor_parallel_size
    if sizes.indivisible(spec, size) or sizes.divided_blocks(spec, plan, size):
        return False
    if field == "quantization" or plan.on_the_fly:  # groups are those of a rank's inputs
        try:
            plan = read_plan(changed, spec).on("cuda" if place.is_gpu else "cpu")
        except ModelError:
            return False  # the checkpoint has its own
    return not shortages(changed, needs_of(changed, spec, plan, place), place)
