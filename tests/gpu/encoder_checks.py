"""The operations only encoders have, against their references on the same device."""

import itertools
from collections.abc import Iterator
from functools import partial

import torch
from report import Case, Report
from tensors import poisoned, row_error

from quire.kernels.attention.encoder_attention import encoder_attention, encoder_attention_reference
from quire.kernels.attention.rope_in_place import rope_in_place, rope_in_place_reference
from quire.kernels.linear.activation import ACTIVATIONS, activation, activation_reference
from quire.kernels.linear.layer_norm import layer_norm, layer_norm_reference

EPS = 1e-5
LIMITS = {torch.float32: 1e-4, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""Of a row's relative error."""


def encoder(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    """`small`: fewer and smaller shapes, for a machine without a GPU."""
    for checks in (_rotations, _attentions, _norms, _activations):
        yield from checks(report, device, small)


def _rotations(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    shapes = [(2, 16, 8)] if small else [(16, 72, 36), (16, 80, 40), (12, 64, 32), (3, 24, 4)]
    for dtype, (heads, dim, half) in itertools.product(LIMITS, shapes):
        run = partial(_rotation, report, device, dtype, heads, dim, half)
        yield Case(f"rope_in_place {dtype} {heads} x {dim} {half}", run)


def _rotation(report: Report, device: torch.device, dtype: torch.dtype, heads: int, dim: int, half: int) -> None:
    for count in (0, 1, 37, 3772):
        qkv = torch.randn(count, 3 * heads * dim, device=device, dtype=dtype)
        angle = 100 * torch.rand(count, half, device=device)
        wanted, detail = qkv.double(), f"{count} x {heads} x {dim} {half}"
        stays = qkv.view(count, 3 * heads, dim).clone()
        rope_in_place(qkv, angle.cos(), angle.sin(), heads)
        rope_in_place_reference(wanted, angle.cos(), angle.sin(), heads)
        got = qkv.view(count, 3 * heads, dim)
        report.number(f"rope_in_place {dtype}", row_error(got, wanted.view_as(got)), LIMITS[dtype], detail)
        report.equal("rope_in_place: values stay", got[:, 2 * heads :], stays[:, 2 * heads :], detail)
        report.equal("rope_in_place: the rest stays", got[..., 2 * half :], stays[..., 2 * half :], detail)


def _attentions(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    shapes = [(2, 16)] if small else [(12, 32), (12, 64), (16, 64), (16, 72), (4, 80), (2, 128), (1, 256)]
    lengths = [(), (1, 5), (3, 64, 65)] if small else [(), (1,), (1, 5, 512), (64, 65, 127, 8192), (17,) * 256]
    for dtype, (heads, dim), rows in itertools.product(LIMITS, shapes, lengths):
        run = partial(_attention, report, device, dtype, heads, dim, rows)
        yield Case(f"encoder_attention {dtype} {heads} x {dim} {rows[:4]}", run)


def _attention(
    report: Report, device: torch.device, dtype: torch.dtype, heads: int, dim: int, rows: tuple[int, ...]
) -> None:
    starts = torch.tensor([0, *rows], device=device).cumsum(0).int()
    qkv = torch.randn(sum(rows), 3 * heads * dim, device=device, dtype=dtype)
    with poisoned():
        got = encoder_attention(qkv, starts, rows, heads, dim**-0.5)
    wanted = encoder_attention_reference(qkv.double(), starts, rows, heads, dim**-0.5)
    detail = f"{dtype} {heads} x {dim} {rows[:4]}"
    report.number(f"encoder_attention {dtype}", row_error(got, wanted), LIMITS[dtype], detail)


def _norms(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    sizes = (64, 96) if small else (64, 384, 768, 1024, 4096)
    for dtype, size in itertools.product(LIMITS, sizes):
        yield Case(f"layer_norm {dtype} {size}", partial(_norm, report, device, dtype, size))


def _norm(report: Report, device: torch.device, dtype: torch.dtype, size: int) -> None:
    for count, add in itertools.product((0, 1, 257), (False, True)):
        x, residual = (torch.randn(count, size, device=device, dtype=dtype) + 1 for _ in range(2))
        weight, bias = (torch.randn(size, device=device, dtype=dtype) for _ in range(2))
        before = residual if add else None
        with poisoned():
            got = layer_norm(x, before, weight, bias, EPS)
        total = (residual + x if add else x).double()
        wanted = layer_norm_reference(total, None, weight.double(), bias.double(), EPS)
        report.number(f"layer_norm {dtype}", row_error(got, wanted), LIMITS[dtype], f"{count} x {size} {add}")


def _activations(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    sizes = (48,) if small else (48, 1536, 4096)
    for dtype, size, kind in itertools.product(LIMITS, sizes, ACTIVATIONS):
        yield Case(f"activation {kind} {dtype} {size}", partial(_activation, report, device, dtype, size, kind))


def _activation(report: Report, device: torch.device, dtype: torch.dtype, size: int, kind: str) -> None:
    for count in (0, 1, 9):
        x = torch.randn(count, size, device=device, dtype=dtype)
        with poisoned():
            got = activation(x, kind)
        error = row_error(got, activation_reference(x.double(), kind))
        report.number(f"activation {kind} {dtype}", error, LIMITS[dtype], f"{count} x {size}")
