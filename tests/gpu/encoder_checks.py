"""The operations only encoders have, against their references on the same device."""

import itertools

import torch
from report import Report, poisoned, row_error

from quire.kernels.activation import GATES, activation, activation_reference
from quire.kernels.encoder_attention import encoder_attention, encoder_attention_reference
from quire.kernels.layer_norm import layer_norm, layer_norm_reference

EPS = 1e-5
LIMITS = {torch.float32: 1e-4, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""Of a row's relative error."""


def check_encoder(report: Report, device: torch.device, small: bool) -> None:
    """`small`: fewer and smaller shapes, for a machine without a GPU."""
    for check in (_attention, _norms, _activations):
        report.go_on()
        check(report, device, small)


def _attention(report: Report, device: torch.device, small: bool) -> None:
    shapes = [(2, 16)] if small else [(12, 32), (12, 64), (16, 64), (4, 80), (2, 128), (1, 256)]
    lengths = [(), (1, 5), (3, 64, 65)] if small else [(), (1,), (1, 5, 512), (64, 65, 127, 8192), (17,) * 256]
    for dtype, (heads, dim), rows in itertools.product(LIMITS, shapes, lengths):
        report.go_on()
        starts = torch.tensor([0, *rows], device=device).cumsum(0).int()
        qkv = torch.randn(sum(rows), 3 * heads * dim, device=device, dtype=dtype)
        with poisoned():
            got = encoder_attention(qkv, starts, rows, heads, dim**-0.5)
        wanted = encoder_attention_reference(qkv.double(), starts, rows, heads, dim**-0.5)
        detail = f"{dtype} {heads} x {dim} {rows[:4]}"
        report.number(f"encoder_attention {dtype}", row_error(got, wanted), LIMITS[dtype], detail)


def _norms(report: Report, device: torch.device, small: bool) -> None:
    sizes = (64, 96) if small else (64, 384, 768, 1024, 4096)
    for dtype, size, count, add in itertools.product(LIMITS, sizes, (0, 1, 257), (False, True)):
        report.go_on()
        x, residual = (torch.randn(count, size, device=device, dtype=dtype) + 1 for _ in range(2))
        weight, bias = (torch.randn(size, device=device, dtype=dtype) for _ in range(2))
        before = residual if add else None
        with poisoned():
            got = layer_norm(x, before, weight, bias, EPS)
        total = (residual + x if add else x).double()
        wanted = layer_norm_reference(total, None, weight.double(), bias.double(), EPS)
        report.number(f"layer_norm {dtype}", row_error(got, wanted), LIMITS[dtype], f"{count} x {size} {add}")


def _activations(report: Report, device: torch.device, small: bool) -> None:
    sizes = (48,) if small else (48, 1536, 4096)
    for dtype, size, count, kind in itertools.product(LIMITS, sizes, (0, 1, 9), GATES):
        report.go_on()
        x = torch.randn(count, size, device=device, dtype=dtype)
        with poisoned():
            got = activation(x, kind)
        error = row_error(got, activation_reference(x.double(), kind))
        report.number(f"activation {kind} {dtype}", error, LIMITS[dtype], f"{count} x {size}")
