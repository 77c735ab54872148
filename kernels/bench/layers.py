"""The operations of a layer and of a step around it, on random data, beside what torch offers for the same."""

from collections.abc import Callable, Iterator

import torch
from torch.nn import functional

from quire.kernels.attention.block_copy import copy_blocks, copy_blocks_reference
from quire.kernels.attention.rope_store_kv import rope_store_kv, rope_store_kv_reference
from quire.kernels.attention.tile_schedule import TileSchedule, fill_tile_schedule, fill_tile_schedule_reference
from quire.kernels.bench import cost, quantized
from quire.kernels.bench.case import Case, Pair, normal
from quire.kernels.bench.shapes import Layer
from quire.kernels.catalog import OPERATIONS
from quire.kernels.linear.activation import Gate, gated_activation
from quire.kernels.linear.embedding import embed_shard
from quire.kernels.linear.linear import linear, norm_linear
from quire.kernels.linear.norm import add_rms_norm, rms_norm
from quire.kernels.linear.pack import pack
from quire.kernels.prepare_inputs import StepInputs, prepare_inputs, prepare_inputs_reference

EPS = 1e-5


def norms(layer: Layer, tokens: int) -> Iterator[Case]:
    """`rms_norm` and `add_rms_norm`."""
    size = layer.dtype.itemsize

    def alone(device: torch.device) -> Pair:
        x, weight = (normal(device, *shape, dtype=layer.dtype) for shape in ((tokens, layer.hidden), (layer.hidden,)))
        return Pair(
            lambda: rms_norm(x, weight, EPS),
            lambda: functional.rms_norm(x, (layer.hidden,), weight, EPS),
        )

    def added(device: torch.device) -> Pair:
        x, residual = (normal(device, tokens, layer.hidden, dtype=layer.dtype) for _ in range(2))
        weight = normal(device, layer.hidden, dtype=layer.dtype)
        return Pair(
            lambda: add_rms_norm(x, residual, weight, EPS)[0],
            lambda: functional.rms_norm(residual + x, (layer.hidden,), weight, EPS),
        )

    shape = f"{tokens} x {layer.hidden}"
    yield Case("rms_norm", shape, cost.rms_norm(tokens, layer.hidden, size, residual=False), alone)
    yield Case("add_rms_norm", shape, cost.rms_norm(tokens, layer.hidden, size, residual=True), added)


def rotations(layer: Layer, tokens: int, cache_dtype: torch.dtype) -> Iterator[Case]:
    """`rope_store_kv`, on positions and angles that need not make sense."""
    half, block_size = layer.head_dim // 2, 16

    def make(device: torch.device) -> Pair:
        qkv = normal(device, tokens, layer.qkv, dtype=layer.dtype)
        cos, sin = (normal(device, tokens, half) for _ in range(2))
        cache = (-(-tokens // block_size) + 1, block_size, layer.kv_heads, layer.head_dim)
        keys, values = (torch.zeros(cache, device=device, dtype=cache_dtype) for _ in range(2))
        slots = torch.randperm(tokens, device=device)
        weights = [normal(device, layer.head_dim, dtype=layer.dtype) if layer.qk_norm else None for _ in range(2)]
        scaled = cache_dtype == torch.float8_e4m3fn
        scale = torch.ones(layer.kv_heads, device=device) if scaled else None
        arguments = (qkv, cos, sin, keys, values, slots, weights[0], weights[1], EPS, scale, scale)
        return Pair(lambda: rope_store_kv(*arguments), lambda: rope_store_kv_reference(*arguments))

    name = f"{tokens} x {layer.name}" + ("" if cache_dtype == layer.dtype else ", fp8")
    sizes = layer.heads, layer.kv_heads, layer.head_dim, half, layer.dtype.itemsize, cache_dtype.itemsize
    # the reference picks out padding by a mask, whose size it must know
    yield Case("rope_store_kv", name, cost.rope_store_kv(tokens, *sizes), make, peer_waits=True)


def activations(layer: Layer, tokens: int) -> Iterator[Case]:
    """`gated_activation` of the feed-forward block."""

    def make(device: torch.device) -> Pair:
        x = normal(device, tokens, 2 * layer.intermediate, dtype=layer.dtype)
        gate, up = x.chunk(2, dim=-1)
        return Pair(lambda: gated_activation(x, "silu"), lambda: functional.silu(gate) * up)

    bound = cost.gated_activation(tokens, layer.intermediate, layer.dtype.itemsize)
    yield Case("gated_activation", f"{tokens} x {layer.intermediate}", bound, make)


def embeddings(layer: Layer, tokens: int) -> Iterator[Case]:
    """`embed_shard` of the whole vocabulary."""

    def make(device: torch.device) -> Pair:
        weight = normal(device, layer.vocab, layer.hidden, dtype=layer.dtype)
        ids = torch.randint(layer.vocab, (tokens,), device=device)
        return Pair(lambda: embed_shard(ids, weight, 0, layer.vocab), lambda: functional.embedding(ids, weight))

    table = layer.vocab * layer.hidden * layer.dtype.itemsize
    bound = cost.embed(tokens, layer.hidden, layer.dtype.itemsize)
    yield Case("embed_shard", f"{tokens} x {layer.hidden} of {layer.vocab}", bound, make, footprint=table)


def linears(layer: Layer, tokens: int, device_type: str) -> Iterator[Case]:
    """`linear` and `norm_linear` of each layer, on weights packed for the device; and its quantized products."""
    formed = {operation.name for operation in OPERATIONS if operation.has_form(device_type)}
    size = layer.dtype.itemsize
    alone = {
        "output": (layer.heads * layer.head_dim, layer.hidden),
        "down": (layer.intermediate, layer.hidden),
        "head": (layer.hidden, layer.vocab),
    }
    for name, (inputs, outputs) in alone.items():
        shape = f"{tokens} x {inputs} -> {outputs}, {name}"
        bound = cost.linear(tokens, inputs, outputs, size, size)
        yield Case("linear", shape, bound, _linear(tokens, inputs, outputs, layer.dtype))
        cases = quantized.linears(tokens, inputs, outputs, layer.dtype, shape)
        yield from (case for case in cases if case.operation in formed)
    for name, outputs, gated in (("qkv", layer.qkv, False), ("gate and up", 2 * layer.intermediate, True)):
        shape = f"{tokens} x {layer.hidden} -> {outputs}, {name}"
        bound = cost.norm_linear(tokens, layer.hidden, outputs, size, size, residual=True, gated=gated)
        yield Case("norm_linear", shape, bound, _norm_linear(tokens, layer, outputs, gated))


def _linear(tokens: int, inputs: int, outputs: int, dtype: torch.dtype) -> Callable[[torch.device], Pair]:
    def make(device: torch.device) -> Pair:
        x, weight = normal(device, tokens, inputs, dtype=dtype), normal(device, outputs, inputs, dtype=dtype)
        packed = pack(weight)
        return Pair(lambda: linear(x, packed, None), lambda: functional.linear(x, weight))

    return make


def _norm_linear(tokens: int, layer: Layer, outputs: int, gated: bool) -> Callable[[torch.device], Pair]:
    def make(device: torch.device) -> Pair:
        x, residual = (normal(device, tokens, layer.hidden, dtype=layer.dtype) for _ in range(2))
        norm_weight = normal(device, layer.hidden, dtype=layer.dtype)
        weight = normal(device, outputs, layer.hidden, dtype=layer.dtype) / layer.hidden**0.5
        packed = pack(weight)

        def peer() -> torch.Tensor:
            normed = functional.rms_norm(residual + x, (layer.hidden,), norm_weight, EPS)
            wide = functional.linear(normed, weight)
            if not gated:
                return wide
            gate, up = wide.chunk(2, dim=-1)
            return functional.silu(gate) * up

        gate: Gate | None = "silu" if gated else None
        return Pair(lambda: norm_linear(x, residual, norm_weight, EPS, packed, None, gate)[0], peer)

    return make


def steps(layer: Layer, rows: int, device_type: str) -> Iterator[Case]:
    """The operations around the layers of a decode step."""
    length, block_size = 1024, 16

    def prepared(device: torch.device) -> Pair:
        tokens = torch.randint(layer.vocab, (rows, 2 * length), device=device, dtype=torch.int32)
        tables = torch.randperm(rows * 128, device=device).int().view(rows, 128)
        known = torch.randint(1, length, (rows,), device=device)
        given = torch.stack((torch.randperm(rows), torch.ones(rows), torch.ones(rows))).int().to(device)
        wide = [torch.empty(rows, dtype=torch.int64, device=device) for _ in range(3)]
        narrow = [torch.empty(rows + extra, dtype=torch.int32, device=device) for extra in (1, 0, 0)]
        out = StepInputs(wide[0], wide[1][None], wide[2], *narrow)

        def run(form: Callable[..., None]) -> torch.Tensor:
            form(tokens, known, tables, given, block_size, out)
            return out.slot_mapping

        return Pair(lambda: run(prepare_inputs), lambda: run(prepare_inputs_reference))

    def listed(device: torch.device) -> Pair:
        lengths = torch.randint(1, length, (rows,), device=device, dtype=torch.int32)
        starts = torch.arange(rows + 1, device=device, dtype=torch.int32)
        out = TileSchedule(torch.empty_like(starts), torch.empty_like(starts))

        def run(form: Callable[..., None]) -> torch.Tensor:
            form(lengths, starts, None, 32, 64, out)
            return out.decode_tiles

        return Pair(lambda: run(fill_tile_schedule), lambda: run(fill_tile_schedule_reference))

    def copied(device: torch.device) -> Pair:
        shape = (4 * rows, block_size, layer.kv_heads, layer.head_dim)
        keys, values = (normal(device, *shape, dtype=layer.dtype) for _ in range(2))
        sources, destinations = torch.randperm(4 * rows, device=device)[: 2 * rows].chunk(2)

        def run(form: Callable[..., None]) -> torch.Tensor:
            form(keys, values, sources, destinations)
            return keys

        return Pair(lambda: run(copy_blocks), lambda: run(copy_blocks_reference))

    bound = cost.copy_blocks(rows, block_size, layer.kv_heads, layer.head_dim, layer.dtype.itemsize)
    yield Case("prepare_inputs", f"{rows} rows", cost.prepare_inputs(rows, rows), prepared)
    if device_type == "cuda":
        yield Case("fill_tile_schedule", f"{rows} rows", cost.tile_schedule(rows), listed)
    yield Case("copy_blocks", f"{rows} blocks", bound, copied)
