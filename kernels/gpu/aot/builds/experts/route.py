"""Ahead-of-time builds of `quire.kernels.gpu.experts.route`."""

from collections.abc import Iterator, Mapping

from quire.kernels.gpu.aot.build import Build
from quire.kernels.gpu.experts.route import route_kernel

_SIGMOIDS = {"SIGMOID": True, "RENORMALIZE": True}


def builds(capability: int) -> Iterator[Build]:
    """128 experts by a softmax, and 256 in 8 groups by sigmoids with a bias."""
    yield _build("softmax of 128", 128, {"bias": None, "SIGMOID": False, "RENORMALIZE": True})
    yield _build("sigmoids of 256 in groups", 256, _SIGMOIDS, groups=8)


def _build(name: str, experts: int, rule: Mapping[str, object], groups: int = 1) -> Build:
    tensors = {"logits": "*bf16", "bias": "*fp32", "slots": "*i64", "ids": "*i32", "weights": "*fp32"}
    tensors = {key: kind for key, kind in tensors.items() if key not in rule}
    sizes = {"EXPERTS": experts, "BLOCK": experts, "K": 8, "K_BLOCK": 8}
    return Build(
        name,
        route_kernel,
        {**tensors, "width": "i32", "scale": "fp32"},
        {**sizes, "GROUPS": groups, "TOP_GROUPS": max(1, groups // 2), **rule},
        num_warps=1,
        divisible=tuple(tensors),
    )
