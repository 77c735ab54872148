"""Attention of a tower of vision, every image for itself, beside torch's over queries, keys and values laid apart."""

from collections.abc import Iterator

import torch
from torch.nn.functional import scaled_dot_product_attention

from quire.kernels.attention.encoder_attention import encoder_attention
from quire.kernels.attention.rope_in_place import rope_in_place, rope_in_place_reference
from quire.kernels.bench import cost
from quire.kernels.bench.case import Case, Pair, normal
from quire.kernels.bench.shapes import Tower


def cases(tower: Tower) -> Iterator[Case]:
    """`rope_in_place` and `encoder_attention`."""
    heads, head_dim, size = tower.heads, tower.head_dim, tower.dtype.itemsize
    shape = f"{tower.images} x {tower.patches} patches, {heads} heads of {head_dim}"
    moved = cost.rope_in_place(tower.images * tower.patches, heads, head_dim, size)
    yield Case("rope_in_place", shape, moved, lambda device: _rotate(tower, device))
    bound = cost.encoder_attention((tower.patches,) * tower.images, heads, head_dim, size)
    yield Case("encoder_attention", shape, bound, lambda device: _attend(tower, device))


def _qkv(tower: Tower, device: torch.device) -> torch.Tensor:
    return normal(device, tower.images * tower.patches, 3 * tower.heads * tower.head_dim, dtype=tower.dtype)


def _rotate(tower: Tower, device: torch.device) -> Pair:
    ours = _qkv(tower, device)
    theirs = ours.clone()
    angles = 100 * torch.rand(len(ours), tower.head_dim // 2, device=device)
    cos, sin = angles.cos(), angles.sin()

    def turned() -> torch.Tensor:
        rope_in_place(ours, cos, sin, tower.heads)
        return ours

    def peer() -> torch.Tensor:
        rope_in_place_reference(theirs, cos, sin, tower.heads)
        return theirs

    return Pair(turned, peer)


def _attend(tower: Tower, device: torch.device) -> Pair:
    qkv = _qkv(tower, device)
    lengths = (tower.patches,) * tower.images
    starts = torch.arange(0, len(qkv) + 1, tower.patches, device=device).int()
    # [images, T, 3, H, D] -> three of [images, H, T, D]
    sides = qkv.view(tower.images, tower.patches, 3, tower.heads, tower.head_dim).permute(2, 0, 3, 1, 4)
    query, key, value = sides.contiguous()

    def peer() -> torch.Tensor:
        return scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(len(qkv), -1)

    return Pair(lambda: encoder_attention(qkv, starts, lengths, tower.heads, tower.head_dim**-0.5), peer)
