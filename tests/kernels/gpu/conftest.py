"""Poison for what kernels must fill, and steps for the attention bodies."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from look_ahead import last_visible
from parts.unchanged import mark_unchanged_thorough

from quire.kernels.attention.attention import AttentionRule, PagedBatch
from quire.kernels.attention.tile_schedule import TileSchedule, fill_tile_schedule_reference
from quire.kernels.attention.window import Window


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Before marks are chosen by."""
    mark_unchanged_thorough(items, config.option.sample_seed)


@pytest.fixture(autouse=True)
def repaired(triton_interpreter: None) -> None:
    """Every test here runs kernels in the interpreter."""


@pytest.fixture(scope="module")
def poisoned_results() -> Iterator[None]:
    """New tensors hold NaN, or the largest whole number, until something is written."""
    # unlike `use_deterministic_algorithms` it does not import the compiler of torch, which takes seconds
    torch.set_deterministic_debug_mode("error")
    yield
    torch.set_deterministic_debug_mode("default")


@dataclass(frozen=True)
class Step:
    """The arguments of `paged_attention`."""

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    batch: PagedBatch
    rule: AttentionRule
    sinks: torch.Tensor | None
    key_scale: torch.Tensor | None
    value_scale: torch.Tensor | None

    def arguments(self) -> tuple[object, ...]:
        return tuple(vars(self).values())


@pytest.fixture(scope="session")
def paged_step() -> Callable[..., Step]:
    """`paged_step(lengths, tile_shape, ...)`: a step whose row r runs lengths[r][0] tokens of lengths[r][1].

    Tokens of padding follow. What no row owns of the cache is NaN, and unused entries of block tables lead nowhere.
    """
    return make_step


def make_step(
    lengths: list[tuple[int, int]],
    tile_shape: tuple[int, int],
    *,
    num_kv_heads: int = 1,
    group: int = 2,
    head_dim: int = 16,
    block_size: int = 16,
    window: Window | None = None,
    soft_cap: float | None = None,
    sinks: bool = False,
    ahead: bool = False,
    query_type: torch.dtype = torch.float32,
    cache_type: torch.dtype | None = None,
    padding: int = 2,
    seed: int = 0,
) -> Step:
    generator = torch.Generator().manual_seed(seed)
    cache_type = cache_type or query_type
    needed = [-(-seq_len // block_size) for _, seq_len in lengths]
    order = torch.randperm(sum(needed) + 3, generator=generator).tolist()
    cache = torch.full((2, len(order), block_size, num_kv_heads, head_dim), torch.nan)
    num_slots = len(lengths) + 2
    slots = torch.randperm(num_slots, generator=generator)[: len(lengths)].int()
    tables = torch.full((num_slots, max(needed, default=0) + 1), 2**31 - 1, dtype=torch.int32)
    for (_, seq_len), slot, count in zip(lengths, slots.tolist(), needed, strict=True):
        blocks = torch.tensor([order.pop() for _ in range(count)], dtype=torch.int64)
        tables[slot, :count] = blocks.int()
        place = torch.arange(seq_len)
        content = torch.randn((2, seq_len, num_kv_heads, head_dim), generator=generator)
        cache[:, blocks[place // block_size], place % block_size] = content
    query_lens = tuple(query_len for query_len, _ in lengths)
    query = torch.randn((num_kv_heads, sum(query_lens) + padding, group, head_dim), generator=generator)
    query[:, sum(query_lens) :] = torch.nan
    seq_lens = torch.tensor([seq_len for _, seq_len in lengths], dtype=torch.int32)
    query_starts = torch.tensor([0, *query_lens]).cumsum(0).int()
    schedule = TileSchedule(torch.empty_like(query_starts), torch.empty_like(query_starts))
    fill_tile_schedule_reference(seq_lens, query_starts, window, *tile_shape, schedule)
    batch = PagedBatch(
        block_tables=tables,
        slots=slots,
        seq_lens=seq_lens,
        query_starts=query_starts,
        num_decodes=0,
        query_lens_host=query_lens,
        seq_lens_host=tuple(seq_lens.tolist()),
        schedules={window: schedule},
        last_visible=last_visible(lengths, seed),
    )
    scaled = cache_type == torch.float8_e4m3fn
    return Step(
        query.to(query_type),
        *cache.to(cache_type),
        batch,
        AttentionRule(head_dim**-0.5, window, soft_cap, ahead),
        torch.randn(num_kv_heads * group, generator=generator) if sinks else None,
        torch.rand(num_kv_heads, generator=generator) + 0.5 if scaled else None,
        torch.rand(num_kv_heads, generator=generator) + 0.5 if scaled else None,
    )
