"""Trials of `quire bench tune` for the products of few tokens on quantized weights."""

import functools
from collections.abc import Callable, Iterator

import torch

from quire.kernels.gpu.quantized import group_tiles as groups
from quire.kernels.gpu.quantized import product_f8 as rows
from quire.kernels.gpu.quantized import product_f8_blocks as blocks
from quire.kernels.gpu.quantized import product_int8 as integers
from quire.kernels.gpu.quantized.quantize_f8_blocks import quantize_f8_blocks
from quire.kernels.gpu.tile_table import Tiles, pin
from quire.kernels.gpu.tuning.trial import Trial
from quire.kernels.linear.linear_f8 import F8
from quire.kernels.linear.linear_f8_blocks import SIDE
from quire.kernels.linear.linear_group_words import linear_group_words, pack_words
from quire.kernels.linear.linear_groups import Bits

_LAYERS = ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096), (4096, 24576), (12288, 4096))
"""Input and output size of the layers of Llama-3.1-8B and Qwen3-8B."""
_GROUPS: tuple[tuple[Bits, int], ...] = ((4, 128), (8, 32))
"""Bits, and inputs of a group: AWQ's and GPTQ's with zero points, and Q8_0's."""


def trials() -> Iterator[Trial]:
    """Every layer of 16 tokens in bfloat16: of codes in groups, of 8-bit floats in rows and in blocks, of integers."""
    for size_in, size_out in _LAYERS:
        for bits, size in _GROUPS:
            beside = size_out * (size_in // size) * (3 if bits == 4 else 2)
            yield Trial(
                groups.OPERATION,
                groups.group_shape_key(size_in, size_out, bits),
                _candidates(groups.default_tiles(size_in, size_out, bits), ({},)),
                size_in * size_out * bits // 8 + beside + 2 * rows.TOKENS * (size_in + size_out),
                functools.partial(prepare_groups, rows.TOKENS, size_in, size_out, bits, size),
            )
        scales = size_in * size_out // SIDE**2
        for operation, dtype, beside, prepare in (
            (rows.OPERATION, F8, size_out, prepare_rows),
            (blocks.OPERATION, F8, scales, prepare_blocks),
            (integers.OPERATION, torch.int8, size_out, prepare_integers),
        ):
            yield Trial(
                operation,
                rows.f8_shape_key(size_in, size_out, dtype),
                _candidates(rows.default_tiles(rows.TOKENS, size_in, size_out, dtype), ({}, {"block_o": 128})),
                size_in * size_out + 4 * beside + rows.TOKENS * (size_in + 2 * size_out),
                functools.partial(prepare, rows.TOKENS, size_in, size_out),
            )


def _candidates(default: Tiles, shapes: tuple[Tiles, ...]) -> tuple[Tiles, ...]:
    """The default, and others in parts, warps and stages, within the shared memory of the smallest chip."""
    others = (
        {**default, **shape, "parts": parts, "num_warps": warps, "num_stages": stages}
        for shape in shapes
        for parts in (1, 2, 4, 8)
        for warps, stages in ((4, 3), (4, 4), (4, 5), (8, 4))
    )
    return (default, *(tiles for tiles in others if tiles != default))


def prepare_groups(
    num_tokens: int, size_in: int, size_out: int, bits: Bits, size: int, device: torch.device
) -> Callable[[Tiles], torch.Tensor]:
    """Random codes of a layer on `device`; a launch of its product with given tiles, which stay those of the layer."""
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn((num_tokens, size_in), generator=generator, device=device, dtype=torch.bfloat16)
    codes = torch.randint(1 << bits, (size_out, size_in), generator=generator, device=device, dtype=torch.uint8)
    words = pack_words(codes, bits)
    scale = torch.rand((size_in // size, size_out), generator=generator, device=device).half()
    zeros = torch.full(scale.shape, 8, dtype=torch.uint8, device=device) if bits == 4 else None

    def launch(tiles: Tiles) -> torch.Tensor:
        pin(groups.OPERATION, groups.group_shape_key(size_in, size_out, bits), tiles)
        return linear_group_words(x, words, scale, zeros, None, bits)

    return launch


def prepare_rows(num_tokens: int, size_in: int, size_out: int, device: torch.device) -> Callable[[Tiles], torch.Tensor]:
    """Random codes of a layer and of its tokens on `device`; a launch of their product, as above."""
    generator = torch.Generator(device).manual_seed(0)
    x, weight = (
        torch.randn((count, size_in), generator=generator, device=device).to(F8) for count in (num_tokens, size_out)
    )
    row_scale, scale = (torch.rand(count, generator=generator, device=device) for count in (num_tokens, size_out))

    def launch(tiles: Tiles) -> torch.Tensor:
        pin(rows.OPERATION, rows.f8_shape_key(size_in, size_out, F8), tiles)
        return rows.product_f8(x, row_scale, weight, scale, None, torch.bfloat16)

    return launch


def prepare_blocks(
    num_tokens: int, size_in: int, size_out: int, device: torch.device
) -> Callable[[Tiles], torch.Tensor]:
    """Random codes of a layer in blocks, and tokens rounded for it; a launch of their product, as above."""
    generator = torch.Generator(device).manual_seed(0)
    x, weight = (
        torch.randn((count, size_in), generator=generator, device=device, dtype=torch.bfloat16)
        for count in (num_tokens, size_out)
    )
    rounded, row_scale, _ = quantize_f8_blocks(x)
    codes, shape = weight.to(F8), (-(-size_out // SIDE), -(-size_in // SIDE))
    scale = torch.rand(shape, generator=generator, device=device)

    def launch(tiles: Tiles) -> torch.Tensor:
        pin(blocks.OPERATION, rows.f8_shape_key(size_in, size_out, F8), tiles)
        return blocks.product_f8_blocks(rounded[:num_tokens], row_scale, codes, scale, None, torch.bfloat16)

    return launch


def prepare_integers(
    num_tokens: int, size_in: int, size_out: int, device: torch.device
) -> Callable[[Tiles], torch.Tensor]:
    """Random integers of a layer and of its tokens on `device`; a launch of their product, as above."""
    generator = torch.Generator(device).manual_seed(0)
    x, weight = (
        torch.randint(-127, 128, (count, size_in), generator=generator, device=device, dtype=torch.int8)
        for count in (num_tokens, size_out)
    )
    row_scale, scale = (torch.rand(count, generator=generator, device=device) for count in (num_tokens, size_out))

    def launch(tiles: Tiles) -> torch.Tensor:
        pin(integers.OPERATION, rows.f8_shape_key(size_in, size_out, torch.int8), tiles)
        return integers.product_int8(x, row_scale, weight, scale, None, torch.bfloat16)

    return launch
