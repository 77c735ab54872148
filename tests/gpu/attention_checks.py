"""Attention against its reference: ragged steps, every option, poison in all of the cache that no row may see."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial

import torch
from report import Case, Report
from tensors import poisoned, row_error

from quire.kernels.attention.attention import (
    AttentionRule,
    PagedBatch,
    paged_attention,
    paged_attention_reference,
)
from quire.kernels.attention.tile_schedule import TileSchedule, fill_tile_schedule, tile_shape
from quire.kernels.attention.window import Chunk, Window, oldest_seen
from quire.kernels.gpu import prefill_switch

Lengths = tuple[tuple[int, int], ...]
LIMITS = {torch.float32: 3e-4, torch.float16: 3e-3, torch.bfloat16: 1e-2}
FP8 = torch.float8_e4m3fn

STEPS: dict[str, Lengths] = {
    "one decode": ((1, 1),),
    "decodes": ((1, 1), (1, 17), (1, 64), (1, 65), (1, 1000), (1, 4097)),
    "mixed": ((1, 100), (1, 5000), (37, 37), (2, 2), (0, 0), (300, 1300), (1, 1)),
    "prompts": ((5, 5), (33, 33), (128, 128), (700, 700)),
}
LONG: Lengths = ((1, 131_072), *(((1, 4096),) * 7))
SMALL: dict[str, Lengths] = {
    "decodes": ((1, 1), (1, 17), (1, 40)),
    "mixed": ((1, 10), (7, 7), (0, 0), (9, 30), (1, 1)),
}


@dataclasses.dataclass(frozen=True)
class Form:
    """What a compiled body is chosen by."""

    dtype: torch.dtype = torch.bfloat16
    cache: torch.dtype = torch.bfloat16
    group: int = 4
    head_dim: int = 128
    block_size: int = 16
    window: Window | None = None
    soft_cap: float | None = None
    sinks: bool = False
    ahead: bool = False
    """Every row is one item, whose tokens see each other."""

    def __str__(self) -> str:
        types = f"{self.dtype} cache {self.cache}".replace("torch.", "")
        options = f"window {self.window} cap {self.soft_cap} sinks {self.sinks} ahead {self.ahead}"
        return f"{types} group {self.group} head {self.head_dim} page {self.block_size} {options}"


def forms(small: bool) -> Iterator[Form]:
    half, single = torch.float16, torch.float32
    if small:
        yield Form(single, single, 2, 16)
        yield Form(single, FP8, 1, 16, window=8, soft_cap=20.0, sinks=True)
        yield Form(single, single, 2, 16, window=Chunk(8), ahead=True)
        return
    for block_size in (16, 64, 128):
        yield Form(block_size=block_size)
        yield Form(cache=FP8, block_size=block_size)
    yield Form(half, half)
    yield Form(single, single)
    yield Form(block_size=128, window=256)
    yield Form(window=100, soft_cap=30.0, sinks=True)
    yield Form(block_size=128, window=1000, soft_cap=30.0, sinks=True)
    yield Form(cache=FP8, window=100, sinks=True)
    yield Form(group=1, head_dim=64)
    yield Form(group=2, head_dim=64, block_size=128)
    yield Form(group=7, head_dim=64)
    yield Form(half, half, group=8, head_dim=128, block_size=128)
    yield Form(group=5, head_dim=96)
    yield Form(group=2, head_dim=256)
    yield Form(group=2, head_dim=256, window=1024, soft_cap=50.0)
    yield Form(group=2, head_dim=512)
    yield Form(cache=FP8, group=8, head_dim=512, block_size=64)
    yield Form(single, single, group=2, head_dim=512)
    yield Form(group=2, head_dim=256, window=500, ahead=True)
    yield Form(window=Chunk(512), ahead=True)
    yield Form(single, single, group=1, head_dim=64, window=50)


def decode(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    """Steps of one-token rows alone."""
    for form in forms(small):
        for name, lengths in (SMALL if small else STEPS).items():
            if all(query == 1 for query, _ in lengths):
                yield Case(f"{name}: {form}", partial(_compare, report, form, name, lengths, device))
    if not small:
        for form in (Form(), Form(cache=FP8)):
            name = "one of 128k beside others"
            yield Case(f"{name}: {form}", partial(_compare, report, form, name, LONG, device))


def prefill(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    """Steps with longer rows, all by the plain body."""
    for form in forms(small):
        for name, lengths in (SMALL if small else STEPS).items():
            if any(query > 1 for query, _ in lengths):
                run = partial(_compare, report, form, name, lengths, device)
                yield Case(f"{name}: {form}", partial(_by, False, device, run))
    yield Case("a NaN stays in its row", partial(_nan_stays, report, device, small))


def specialized(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    """The same by the specialized body, of the forms that have it."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != (9, 0):
        yield Case("nothing to check: only chips of compute capability 9.0 run this body", lambda: None)
        return
    from quire.kernels.gpu.attention.tiles import select_prefill_body

    for form in forms(small):
        chosen = select_prefill_body(90, form.block_size, form.head_dim, form.dtype, form.cache, form.window)
        for name in ("prompts", "mixed") if chosen.specialized and not form.ahead else ():
            run = partial(_compare, report, form, name, STEPS[name], device)
            yield Case(f"{name}: {form}", partial(_by, True, device, run))


def _by(specialized: bool, device: torch.device, run: Callable[[], None]) -> None:
    """Whatever is on record for this chip: the body that may hang must cost nothing but its own part."""
    if device.type == "cuda":
        prefill_switch.trust(specialized)
    run()


def _compare(report: Report, form: Form, name: str, lengths: Lengths, device: torch.device) -> None:
    arguments = make(form, lengths, device)
    with poisoned():
        got = paged_attention(*arguments)
    wanted = paged_attention_reference(arguments[0].float(), *arguments[1:])
    used = sum(query for query, _ in lengths)
    kind = f"{form.dtype}, cache {form.cache}".replace("torch.", "")
    report.number(f"{name}: {kind}", row_error(got[:used], wanted[:used]), LIMITS[form.dtype], str(form))


def _nan_stays(report: Report, device: torch.device, small: bool) -> None:
    """A NaN among the keys of one row is seen by that row alone."""
    lengths = ((1, 30), (1, 40), (9, 50), (8, 8))
    form = Form(torch.float32, torch.float32, 2, 16) if small else Form()
    query, keys, values, batch, *rest = make(form, lengths, device)
    sound = paged_attention(query, keys, values, batch, *rest)
    for row, tokens in ((1, slice(1, 2)), (2, slice(2, 11))):
        spoilt = values.clone()
        spoilt[batch.block_tables[batch.slots[row], 0].long(), 0] = torch.nan
        got = paged_attention(query, keys, spoilt, batch, *rest)
        others = torch.ones(19, dtype=torch.bool, device=device)
        others[tokens] = False
        report.holds("a NaN that a row sees shows", bool(got[:19][~others].isnan().all()), f"row {row}")
        report.equal("a NaN stays in its row", got[:19][others], sound[:19][others], f"row {row}")


def make(form: Form, lengths: Lengths, device: torch.device, kv_heads: int = 2) -> tuple:
    """The arguments of `paged_attention` for rows of (tokens to run, tokens of the sequence); padding follows."""
    size = form.block_size
    needed = [-(-length // size) for _, length in lengths]
    order = torch.randperm(sum(needed) + 3, device=device)
    cache = torch.full((2, len(order), size, kv_heads, form.head_dim), torch.nan, device=device)
    tables = torch.full((len(lengths) + 2, max(needed) + 1), 2**31 - 1, dtype=torch.int32, device=device)
    slots = torch.randperm(len(lengths) + 2)[: len(lengths)].int()
    end = 0
    for (query_len, length), slot, count in zip(lengths, slots.tolist(), needed, strict=True):
        blocks, end = order[end : end + count], end + count
        tables[slot, :count] = blocks.int()
        # blocks behind the window are another row's by now
        tables[slot, : int(oldest_seen(torch.tensor(length - query_len), form.window)) // size] = order[-1]
        place = torch.arange(length, device=device)
        content = torch.randn((2, length, kv_heads, form.head_dim), device=device)
        cache[:, blocks[place // size], place % size] = content
    queries, seq_lens = (tuple(column) for column in zip(*lengths, strict=True))
    query = torch.randn((kv_heads, sum(queries) + 3, form.group, form.head_dim), device=device)
    query[:, sum(queries) :] = torch.nan
    starts = torch.tensor((0, *queries), device=device).cumsum(0).int()
    on_device = torch.tensor(seq_lens, dtype=torch.int32, device=device)
    schedules, tiles = {}, tile_shape(device.type, form.group)
    if tiles is not None:
        schedules[form.window] = TileSchedule(torch.empty_like(starts), torch.empty_like(starts))
        fill_tile_schedule(on_device, starts, form.window, *tiles, schedules[form.window])
    decodes = next((row for row, count in enumerate(queries) if count != 1), len(queries))
    last = on_device.repeat_interleave(torch.tensor(queries, device=device)) - 1
    batch = PagedBatch(tables, slots.to(device), on_device, starts, decodes, queries, seq_lens, schedules, last)
    scaled = form.cache == FP8
    scales = [torch.rand(kv_heads, device=device) + 0.5 if scaled else None for _ in range(2)]
    sinks = torch.randn(kv_heads * form.group, device=device) if form.sinks else None
    rule = AttentionRule(form.head_dim**-0.5, form.window, form.soft_cap, form.ahead)
    return query.to(form.dtype), *cache.to(form.cache), batch, rule, sinks, *scales
