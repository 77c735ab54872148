"""Every test here runs once for each instruction set that is compiled and that this processor runs."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

from quire.kernels.attention.attention import PagedBatch
from quire.kernels.attention.int8_rows import quantize_rows
from quire.kernels.cpu.native import load, runnable_sets

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

FORMS = (
    "attention",
    "encoder_attention",
    "experts.coded",
    "experts.counted",
    "experts.experts",
    "experts.route",
    "experts.shared",
    "linear.activation",
    "linear.embed_groups",
    "linear.embedding",
    "linear.linear",
    "linear.linear_f8",
    "linear.linear_groups",
    "linear.linear_int8",
    "linear.norm",
    "part_norm",
    "prepare_inputs",
    "query_factors",
    "rope_angles",
    "rope_in_place",
    "rope_store_kv",
    "rows",
    "sampling.penalize",
    "sampling.sample",
    "sampling.score",
    "sampling.top_k_top_p",
    "values",
)


@pytest.fixture(scope="module", params=runnable_sets())
def instruction_set(request):
    """Name of the instruction set that all forms of this folder use during the test."""
    library = load(request.param)
    with pytest.MonkeyPatch.context() as patch:
        for form in FORMS:
            patch.setattr(importlib.import_module(f"quire.kernels.cpu.{form}"), "native", lambda: library)
        yield request.param


@pytest.fixture
def threads():
    """`threads(n)` for the rest of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def make_step():
    """`make_step(lengths [(query, seq), ...], block_size, kv_heads, groups, head_dim, dtype, cache_dtype, seed)`.

    -> (query, keys, values, batch). Rows of one token come first, a row of padding last; blocks lie in any order, and
    all of the cache that no row owns, and all of the tables that mean nothing, is poison.
    """

    def make(lengths, block_size, kv_heads, groups, head_dim, dtype, cache_dtype, seed):
        generator = torch.Generator().manual_seed(seed)
        lengths = sorted(lengths, key=lambda row: row[0] != 1)
        needed = [-(-seq // block_size) for _, seq in lengths]
        order = torch.randperm(sum(needed) + 2, generator=generator).tolist()
        slots = torch.randperm(len(lengths) + 1, generator=generator).int()
        keys = torch.full((len(order), block_size, kv_heads, head_dim), torch.nan)
        values = torch.full_like(keys, torch.nan)
        tables = torch.full((len(slots), max(needed, default=0) + 1), 2**31 - 1, dtype=torch.int32)
        for row, (_, seq_len) in enumerate(lengths):
            blocks = torch.tensor([order.pop() for _ in range(needed[row])])
            tables[slots[row], : needed[row]] = blocks.int()
            place = torch.arange(seq_len)
            for cache in (keys, values):
                cached = torch.randn((seq_len, kv_heads, head_dim), generator=generator)
                cache[blocks[place // block_size], place % block_size] = cached
        query_lens, seq_lens = [query for query, _ in lengths] + [0], [seq for _, seq in lengths] + [0]
        query = torch.randn((kv_heads, sum(query_lens), groups, head_dim), generator=generator)
        batch = PagedBatch(
            block_tables=tables,
            slots=slots,
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
            query_starts=torch.tensor([0, *query_lens]).cumsum(0).int(),
            num_decodes=query_lens.count(1),
            query_lens_host=tuple(query_lens),
            seq_lens_host=tuple(seq_lens),
            schedules={},
        )
        if cache_dtype == torch.int8:
            return query.to(dtype), quantize_rows(keys), quantize_rows(values), batch
        return query.to(dtype), keys.to(cache_dtype), values.to(cache_dtype), batch

    return make
