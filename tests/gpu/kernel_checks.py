"""The operations of a layer and of a step against their references, which run in float64 on the same device."""

import itertools
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from report import Case, Report
from tensors import poisoned, row_error

from quire.kernels.attention.block_copy import copy_blocks
from quire.kernels.attention.rope_store_kv import rope_store_kv, rope_store_kv_reference
from quire.kernels.attention.tile_schedule import TileSchedule, fill_tile_schedule, fill_tile_schedule_reference
from quire.kernels.linear.activation import GATES, gated_activation, gated_activation_reference
from quire.kernels.linear.embedding import embed_shard, embed_shard_reference
from quire.kernels.linear.linear import linear, linear_reference, norm_linear, norm_linear_reference
from quire.kernels.linear.norm import add_rms_norm, add_rms_norm_reference, rms_norm, rms_norm_reference
from quire.kernels.linear.pack import pack
from quire.kernels.prepare_inputs import StepInputs, prepare_inputs, prepare_inputs_reference

EPS = 1e-5
LIMITS = {torch.float32: 1e-4, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""Of a row's relative error."""
DTYPES = tuple(LIMITS)
Form = tuple[int, int, int, int, bool, bool]
"""Of `rope_store_kv`: heads, kv_heads, head_dim, half, qk_norm, fp8."""


def layers(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    """All but linear layers. `small`: fewer and smaller shapes, for a machine without a GPU."""
    for checks in (_norms, _activations, _rotations, _embeddings, _copies, _steps):
        yield from checks(report, device, small)


def _wide(*tensors: torch.Tensor | None) -> list[torch.Tensor | None]:
    return [None if x is None else x.double() for x in tensors]


def _norms(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    sizes = (64, 96) if small else (64, 96, 128, 2560, 4096, 5120, 8192)
    tokens = (0, 1, 7) if small else (0, 1, 7, 257, 4096)
    for dtype, size, count in itertools.product(DTYPES, sizes, tokens):
        yield Case(f"norms {dtype} {count} x {size}", partial(_norm, report, device, dtype, size, count))


def _norm(report: Report, device: torch.device, dtype: torch.dtype, size: int, count: int) -> None:
    x, residual = (torch.randn(count, size, device=device, dtype=dtype) for _ in range(2))
    weight = torch.randn(size, device=device, dtype=dtype)
    detail = f"{dtype} {count} x {size}"
    with poisoned():
        got = rms_norm(x, weight, EPS)
        normed, total = add_rms_norm(x, residual, weight, EPS)
    wanted = rms_norm_reference(*_wide(x, weight), EPS)
    report.number(f"rms_norm {dtype}", row_error(got, wanted), LIMITS[dtype], detail)
    report.equal("add_rms_norm: the sum", total, add_rms_norm_reference(x, residual, weight, EPS)[1], detail)
    wanted = rms_norm_reference(*_wide(total, weight), EPS)
    report.number(f"add_rms_norm {dtype}", row_error(normed, wanted), LIMITS[dtype], detail)
    if count > 1:
        x[1] = torch.nan
        again = rms_norm(x, weight, EPS)
        _one_row_is_nan(report, "rms_norm", again, got, 1, detail)


def _one_row_is_nan(
    report: Report, name: str, spoilt: torch.Tensor, sound: torch.Tensor, row: int, detail: str
) -> None:
    """Row `row` is all NaN, and the others are what they were without it."""
    others = [index for index in range(len(sound)) if index != row]
    report.holds(f"{name}: a NaN row shows", bool(spoilt[row].isnan().all()), detail)
    report.equal(f"{name}: a NaN row stays in its row", spoilt[others], sound[others], detail)


def _activations(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    sizes = (48,) if small else (48, 3072, 12288, 14336)
    for dtype, size, kind in itertools.product(DTYPES, sizes, GATES):
        yield Case(f"gated_activation {kind} {dtype} {size}", partial(_activation, report, device, dtype, size, kind))


def _activation(report: Report, device: torch.device, dtype: torch.dtype, size: int, kind: str) -> None:
    for count in (0, 1, 9):
        x = torch.randn(count, 2 * size, device=device, dtype=dtype)
        with poisoned():
            got = gated_activation(x, kind)
        wanted = gated_activation_reference(x.double(), kind)
        detail = f"{dtype} {count} x {size}"
        report.number(f"gated_activation {kind} {dtype}", row_error(got, wanted), LIMITS[dtype], detail)


def _rotations(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    forms: Sequence[Form] = [(4, 2, 16, 8, True, False), (4, 2, 16, 6, False, True)]
    if not small:
        forms = [
            (32, 8, 128, 64, False, False), (32, 8, 128, 64, True, False), (32, 8, 128, 64, False, True),
            (32, 8, 128, 64, True, True), (14, 2, 64, 32, False, False), (8, 8, 256, 128, False, True),
            (9, 3, 64, 16, True, False),
        ]  # fmt: skip
    for form, dtype, count in itertools.product(forms, DTYPES, (0, 1, 37)):
        run = partial(_rotation, report, device, form, dtype, count)
        yield Case(f"rope_store_kv {form} {dtype} {count}", run)


def _rotation(report: Report, device: torch.device, form: Form, dtype: torch.dtype, count: int) -> None:
    heads, kv_heads, dim, half, qk_norm, fp8 = form
    cache_dtype = torch.float8_e4m3fn if fp8 else dtype
    qkv = torch.randn(count, (heads + 2 * kv_heads) * dim, device=device, dtype=dtype)
    angle = torch.randn(count, half, device=device)
    weights = [torch.randn(dim, device=device, dtype=dtype) if qk_norm else None for _ in range(2)]
    scales = [torch.rand(kv_heads, device=device) + 0.5 if fp8 else None for _ in range(2)]
    slots = torch.randperm(8 * 16, device=device)[:count]
    slots[::3] = -1
    caches = [torch.full((8, 16, kv_heads, dim), 7.0, device=device).to(cache_dtype) for _ in range(2)]
    wide = [torch.full((8, 16, kv_heads, dim), 7.0, device=device, dtype=torch.float64) for _ in range(2)]
    with poisoned():
        got = rope_store_kv(qkv, angle.cos(), angle.sin(), *caches, slots, *weights, EPS, *scales)
    wanted = rope_store_kv_reference(
        qkv.double(), angle.cos(), angle.sin(), *wide, slots, *_wide(*weights), EPS, None, None
    )
    detail = f"{form} {dtype} {count}"
    used = slots >= 0
    error = row_error(got[:, used], wanted[:, used])
    report.number(f"rope_store_kv: queries {dtype}", error, LIMITS[dtype], detail)
    for cache, reference, scale in zip(caches, wide, scales, strict=True):
        stored = cache.double() if scale is None else cache.double() * scale[:, None].double()
        untouched = torch.ones(8 * 16, dtype=torch.bool, device=device)
        untouched[slots[used]] = False
        stored, reference = stored.flatten(0, 1), reference.flatten(0, 1)
        limit = 0.08 if fp8 else LIMITS[dtype]
        error = row_error(stored[slots[used]], reference[slots[used]])
        report.number(f"rope_store_kv: cache {cache_dtype}", error, limit, detail)
        report.equal(
            "rope_store_kv: other slots", cache.flatten(0, 1)[untouched].float(),
            torch.full_like(stored[untouched], 7.0).float(), detail,
        )  # fmt: skip


def _embeddings(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    for dtype in DTYPES:
        yield Case(f"embed_shard {dtype}", partial(_embedding, report, device, dtype))


def _embedding(report: Report, device: torch.device, dtype: torch.dtype) -> None:
    for size, count in itertools.product((48, 4096), (0, 1, 300)):
        weight = torch.randn(100, size, device=device, dtype=dtype)
        ids = torch.randint(0, 200, (count,), device=device)
        with poisoned():
            got = embed_shard(ids, weight, 50, 90)
        report.equal("embed_shard", got, embed_shard_reference(ids, weight, 50, 90), f"{dtype} {count} x {size}")


def linears(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    """Alone and with norm, residual and gate, on both sides of the number of tokens from which cuBLAS takes over."""
    shapes = [(96, 80), (64, 200)]
    if not small:
        shapes += [(4096, 6144), (4096, 4096), (14336, 4096), (4096, 28672), (896, 1152), (4864, 896)]
    for (inputs, outputs), dtype, count in itertools.product(shapes, DTYPES, (0, 1, 3, 8, 16, 17, 64)):
        if dtype != torch.bfloat16 and inputs == 14336:  # every shape is a kernel to compile
            continue
        run = partial(_linear, report, device, inputs, outputs, dtype, count)
        yield Case(f"linear {dtype} {count} x {inputs} -> {outputs}", run)


def _linear(report: Report, device: torch.device, inputs: int, outputs: int, dtype: torch.dtype, count: int) -> None:
    x, residual = (torch.randn(count, inputs, device=device, dtype=dtype) for _ in range(2))
    weight = torch.randn(outputs, inputs, device=device, dtype=dtype) / inputs**0.5
    norm_weight, bias = (torch.randn(size, device=device, dtype=dtype) for size in (inputs, outputs))
    packed, detail = pack(weight.clone()), f"{dtype} {count} x {inputs} -> {outputs}"
    for offset in (None, bias):
        with poisoned():
            got = linear(x, packed, offset)
        wanted = linear_reference(*_wide(x, weight, offset))
        report.number(f"linear {dtype}", row_error(got, wanted), LIMITS[dtype], detail)
    for gate, added in ((None, residual), ("silu", residual), ("gelu_tanh", None)):
        with poisoned():
            out, total = norm_linear(x, added, norm_weight, EPS, packed, None, gate)
        wanted_total = x if added is None else x + added
        report.equal("norm_linear: the sum", total, wanted_total, detail)
        wanted = norm_linear_reference(*_wide(total), None, *_wide(norm_weight), EPS, *_wide(weight), None, gate)[0]
        report.number(f"norm_linear {gate} {dtype}", row_error(out, wanted), 2 * LIMITS[dtype], detail)
    if count > 1:
        sound = linear(x, packed, bias)
        x[1] = torch.nan
        _one_row_is_nan(report, "linear", linear(x, packed, bias), sound, 1, detail)


def _copies(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    for dtype in (*DTYPES, torch.float8_e4m3fn):
        yield Case(f"copy_blocks {dtype}", partial(_copy, report, device, dtype))


def _copy(report: Report, device: torch.device, dtype: torch.dtype) -> None:
    for size in (16, 128):
        caches = [torch.randn(20, size, 2, 64, device=device).to(dtype) for _ in range(2)]
        wanted = [cache.clone().view(torch.uint8) for cache in caches]
        order = torch.randperm(20, device=device)
        sources, destinations = order[:7], order[7:14]
        copy_blocks(*caches, sources, destinations)
        for cache, expected in zip(caches, wanted, strict=True):
            expected[destinations] = expected[sources]
            report.equal("copy_blocks", cache.view(torch.uint8), expected, f"{dtype} blocks of {size}")


def _steps(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    for rows, tokens, seed in ((1, 1, 0), (5, 64, 1), (8, 300, 2), (256, 256, 3), (256, 2048, 4)):
        yield Case(f"prepare_inputs {rows} rows, {tokens} tokens", partial(_step, report, device, rows, tokens, seed))


def _step(report: Report, device: torch.device, rows: int, tokens: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    spare = tokens - rows
    counts = torch.ones(rows, dtype=torch.int64)
    counts[rows // 2 :] += torch.randint(0, spare // rows + 1, (rows - rows // 2,), generator=generator)
    counts[-1] = 0 if rows > 1 else 1
    computed = torch.randint(0, 500, (rows,), generator=generator)
    slots, known = torch.randperm(rows + 3, generator=generator)[:rows], torch.full((rows + 3,), 500)
    given = torch.stack((slots, 500 - computed, counts)).int()
    table = torch.randint(0, 1000, (rows + 3, 4096), generator=generator).int().to(device)
    blocks = torch.randint(0, 9999, (rows + 3, 256), generator=generator).int().to(device)
    wide = torch.zeros((3, rows + 9), dtype=torch.int32, device=device)
    wide[:, :rows] = given.to(device)
    results = []
    for form in (prepare_inputs, prepare_inputs_reference):
        long = [torch.full((tokens,), 77, dtype=torch.int64, device=device) for _ in range(3)]
        short = [torch.full((rows + more,), 77, dtype=torch.int32, device=device) for more in (1, 0, 0)]
        out = StepInputs(long[0], long[1][None], long[2], *short)
        form(table, known.to(device), blocks, wide[:, :rows], 16, out)
        results.append(out)
    detail = f"{rows} rows, {tokens} tokens"
    for name, got, wanted in zip(StepInputs._fields, *results, strict=True):
        report.equal(f"prepare_inputs: {name}", got, wanted, detail)
    for window in (None, 1, 100):
        lists = []
        for form in (fill_tile_schedule, fill_tile_schedule_reference):
            starts = results[1].query_starts
            out_list = TileSchedule(torch.full_like(starts, 77), torch.full_like(starts, 77))
            form(results[1].seq_lens, starts, window, 32, 64, out_list)
            lists.append(out_list)
        for name in ("prefill_tiles", "decode_tiles"):
            report.equal(f"fill_tile_schedule: {name}", *(getattr(one, name) for one in lists), detail)
