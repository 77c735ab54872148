"""Ahead-of-time builds of `quire.kernels.gpu.attention.rope_store_kv`."""

from collections.abc import Iterator
from typing import Any

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.attention.rope_store_kv import rope_constants, rope_store_kv_kernel
from quire.kernels.gpu.attention.tiles import HeadLayout, rope_tiles
from quire.kernels.gpu.chip import has_eight_bits


def builds(capability: int) -> Iterator[Build]:
    """Each head size, with and without norm of the heads and 8-bit cache; partial rotation; 16-bit floats; gains of
    Gemma 3's heads, in float32."""
    plain: dict[str, Any] = {"norm": False, "cache": "bf16"}
    if capability != 90:
        yield _build(head_dim=128, half=64, **plain)
        yield _build(head_dim=128, half=64, norm=True, cache="bf16")
        yield _build(head_dim=256, half=128, norm=True, cache="bf16", gains="fp32")
        if has_eight_bits(capability):
            yield _build(head_dim=128, half=64, norm=False, cache="fp8e4nv")
        return
    for head_dim in (64, 80, 96, 128, 256):
        yield _build(head_dim=head_dim, half=head_dim // 2, **plain)
    yield _build(head_dim=128, half=32, **plain)
    for norm in (False, True):
        yield _build(head_dim=128, half=64, norm=norm, cache="fp8e4nv")
    yield _build(head_dim=128, half=64, norm=True, cache="bf16")
    for head_dim in (128, 256):
        yield _build(head_dim=head_dim, half=head_dim // 2, norm=True, cache="bf16", gains="fp32")
    yield _build(head_dim=128, half=64, norm=False, cache="fp16", dtype="fp16")


def _build(*, head_dim: int, half: int, norm: bool, cache: str, dtype: str = "bf16", gains: str = "") -> Build:
    """8 key-value heads of 4 query heads each; other counts differ in a constant."""
    weights = ("query_weight", "key_weight")
    scales = ("key_scale", "value_scale")
    scaled = cache == "fp8e4nv"
    signature = {
        "qkv": f"*{dtype}",
        **dict.fromkeys(("cos", "sin"), "*fp32"),
        **dict.fromkeys(("keys", "values"), f"*{cache}"),
        "slot_mapping": "*i64",
        **(dict.fromkeys(weights, f"*{gains or dtype}") if norm else {}),
        "eps": "fp32",
        **(dict.fromkeys(scales, "*fp32") if scaled else {}),
        "query": f"*{dtype}",
        "num_tokens": "i32",
    }
    heads = HeadLayout(8, 4, head_dim, half)
    tiles = rope_tiles(heads)
    absent = (() if norm else weights) + (() if scaled else scales)
    normed = "" if not norm else f"norm by {gains} " if gains else "norm "
    turning = "" if 2 * half == head_dim else f" half{half}"
    return Build(
        name=f"{normed}rotate d{head_dim}{turning} {dtype} to {cache}",
        kernel=rope_store_kv_kernel,
        signature=signature,
        constants={**dict.fromkeys(absent), **rope_constants(heads, tiles)},
        num_warps=tiles["num_warps"],
        divisible=tuple(name for name, type_ in signature.items() if type_.startswith("*")),
    )
