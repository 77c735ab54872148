"""The compiled attention against the reference in float32, on ragged batches in a poisoned cache."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from look_ahead import last_visible

from quire.kernels.attention.attention import AttentionRule, paged_attention_reference
from quire.kernels.attention.int8_rows import dequantize_rows, quantize_rows
from quire.kernels.attention.window import Chunk
from quire.kernels.cpu.attention import paged_attention
from quire.kernels.cpu.native import UnsupportedDtypeError

FP8 = torch.float8_e4m3fn
TOLERANCE = {torch.float32: (1e-4, 2e-5), torch.bfloat16: (1e-2, 2e-2), torch.float16: (2e-3, 2e-3)}

pytestmark = [pytest.mark.usefixtures("instruction_set"), pytest.mark.sampled(40)]

row_lengths = st.integers(1, 90).flatmap(
    lambda seq: st.tuples(st.one_of(st.just(1), st.integers(1, seq)), st.just(seq))
)


def expected(query, keys, values, batch, rule, sinks=None, key_scale=None, value_scale=None):
    """The reference, on float32 copies of what the arguments hold."""
    ones = torch.ones(keys.shape[2])
    if keys.dtype == torch.int8:
        query, keys, values = dequantize_rows(quantize_rows(query)), dequantize_rows(keys), dequantize_rows(values)
    keys = keys.float() * (ones if key_scale is None else key_scale)[:, None]
    values = values.float() * (ones if value_scale is None else value_scale)[:, None]
    return paged_attention_reference(query.float(), keys, values, batch, rule, sinks)


def assert_follows_the_reference(query, keys, values, batch, rule, *options, atol=None):
    result = paged_attention(query, keys, values, batch, rule, *options)
    assert result.dtype == query.dtype
    rtol, usual = TOLERANCE[query.dtype]
    wanted = expected(query, keys, values, batch, rule, *options)
    torch.testing.assert_close(result.float(), wanted, rtol=rtol, atol=usual if atol is None else atol)


def looking_ahead(step, seed):
    """The step with items strewn over its tokens."""
    *tensors, batch = step
    lengths = list(zip(batch.query_lens_host, batch.seq_lens_host, strict=True))
    return *tensors, dataclasses.replace(batch, last_visible=last_visible(lengths, seed))


@settings(max_examples=60)
@given(
    lengths=st.lists(row_lengths, max_size=7),
    block_size=st.sampled_from([1, 4, 16, 32]),
    heads=st.sampled_from([(1, 1), (2, 1), (2, 2), (1, 7), (3, 3), (1, 16)]),
    head_dim=st.sampled_from([8, 20, 64, 80, 96, 128]),
    window=st.sampled_from([None, 1, 3, 16, 70, Chunk(1), Chunk(20), Chunk(64)]),
    soft_cap=st.sampled_from([None, 2.0]),
    with_sinks=st.booleans(),
    ahead=st.booleans(),
    dtype=st.sampled_from(list(TOLERANCE)),
    cache_dtype=st.sampled_from([None, torch.float32, torch.bfloat16, torch.float16, FP8, torch.int8]),
    seed=st.integers(0, 1000),
)
def test_any_ragged_batch_follows_the_reference_and_ignores_poison(
    make_step, lengths, block_size, heads, head_dim, window, soft_cap, with_sinks, ahead, dtype, cache_dtype, seed
):
    cache_dtype = cache_dtype or dtype
    step = looking_ahead(make_step(lengths, block_size, *heads, head_dim, dtype, cache_dtype, seed), seed)
    generator = torch.Generator().manual_seed(seed)
    sinks = torch.randn(heads[0] * heads[1], generator=generator) if with_sinks else None
    scales = torch.rand((2, heads[0]), generator=generator) + 0.5 if cache_dtype == FP8 else (None, None)
    rule = AttentionRule(head_dim**-0.5, window, soft_cap, looks_ahead=ahead)
    assert_follows_the_reference(*step, rule, sinks, *scales)


@pytest.mark.parametrize("length", [15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 512, 513, 1300])
@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.int8])
def test_lengths_around_the_edges_of_blocks_tiles_and_splits_are_right(make_step, length, cache_dtype):
    lengths = [(1, length), (length, length), (length // 2, length), (2, length)]
    step = make_step(lengths, 16, 1, 2, 16, torch.float32, cache_dtype, length)
    for window in (None, 300, Chunk(256)):
        assert_follows_the_reference(*step, AttentionRule(0.25, window))


@pytest.mark.parametrize("length", [63, 65, 256, 257, 513])
@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, FP8, torch.int8])
def test_prompts_in_bfloat16_are_right_over_any_cache_at_the_edges_of_tiles(make_step, length, cache_dtype):
    lengths = [(1, length), (length, length), (length // 2, length), (2, length)]
    step = make_step(lengths, 16, 2, 3, 64, torch.bfloat16, cache_dtype, length)
    scales = (torch.tensor([0.5, 1.5]),) * 2 if cache_dtype == FP8 else (None, None)
    for window in (None, 300, Chunk(256)):
        assert_follows_the_reference(*step, AttentionRule(0.125, window), None, *scales)


@pytest.mark.parametrize("head_dim", [256, 512])
@pytest.mark.parametrize(
    ("dtype", "cache_dtype"), [(torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, FP8)]
)
def test_the_widest_heads_are_right(make_step, head_dim, dtype, cache_dtype):
    step = make_step([(1, 300), (40, 290), (1, 7)], 16, 2, 3, head_dim, dtype, cache_dtype or dtype, 0)
    scales = (torch.tensor([0.5, 1.5]),) * 2 if cache_dtype == FP8 else (None, None)
    assert_follows_the_reference(*step, AttentionRule(head_dim**-0.5), None, *scales)


@pytest.mark.parametrize("length", [255, 256, 257, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 100])
def test_items_may_span_tiles_of_queries_and_of_context(make_step, length, dtype, window):
    *tensors, batch = make_step([(length, length), (length // 2, length), (1, 9)], 16, 2, 3, 64, dtype, dtype, 1)
    rule = AttentionRule(0.125, window, looks_ahead=True)
    own = [range(seq - query, seq) for query, seq in zip(batch.query_lens_host, batch.seq_lens_host, strict=True)]
    everything = torch.tensor([each[-1] for each in own for _ in each], dtype=torch.int32)
    assert_follows_the_reference(*tensors, dataclasses.replace(batch, last_visible=everything), rule)
    assert_follows_the_reference(*looking_ahead((*tensors, batch), length), rule)


@pytest.mark.parametrize("window", [70, Chunk(96)])
@pytest.mark.parametrize("query_len", [1, 3, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_behind_the_window_may_be_another_row_s(make_step, window, query_len, dtype):
    query, keys, values, batch = make_step([(query_len, 700), (query_len, 290)], 16, 2, 2, 64, dtype, dtype, 4)
    rule = AttentionRule(0.125, window)
    clean = paged_attention(query, keys, values, batch, rule)
    for slot, seq_len in zip(batch.slots.tolist(), batch.seq_lens_host, strict=True):
        first = seq_len - query_len
        oldest = first // 96 * 96 if isinstance(window, Chunk) else first - 69
        for cache in (keys, values):
            cache[batch.block_tables[slot, : max(oldest, 0) // 16].long()] = torch.nan
        batch.block_tables[slot, : max(oldest, 0) // 16] = 2**31 - 1
    assert torch.equal(paged_attention(query, keys, values, batch, rule), clean)


def test_scores_far_apart_neither_overflow_nor_lose_the_winner(make_step):
    step = make_step([(1, 200), (60, 200)], 16, 2, 2, 64, torch.float32, torch.float32, 1)
    # scores of a thousand have an absolute error of 1e-4, whoever computes them in float32
    assert_follows_the_reference(*step, AttentionRule(30.0), atol=1e-3)


def test_a_step_without_rows_gives_an_empty_result(make_step):
    step = make_step([], 16, 2, 2, 16, torch.float32, torch.float32, 0)
    assert paged_attention(*step, AttentionRule(1.0)).shape == (0, 64)


def alone(step, row):
    """The step cut down to one of its rows."""
    query, keys, values, batch = step
    start, stop = batch.query_starts[row : row + 2].tolist()
    batch = dataclasses.replace(
        batch,
        slots=batch.slots[row : row + 1],
        seq_lens=batch.seq_lens[row : row + 1],
        query_starts=torch.tensor([0, stop - start], dtype=torch.int32),
        num_decodes=int(stop - start == 1),
        query_lens_host=(stop - start,),
        seq_lens_host=batch.seq_lens_host[row : row + 1],
    )
    return query[:, start:stop].contiguous(), keys, values, batch


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cache_dtype", [None, torch.int8])
def test_a_row_gives_the_same_bits_whatever_the_company_and_the_threads(make_step, threads, dtype, cache_dtype):
    lengths = [(1, 9), (1, 700), (1, 513), (300, 600), (5, 40)]
    step = make_step(lengths, 16, 3, 2, 64, dtype, cache_dtype or dtype, 5)
    rule = AttentionRule(0.125)
    results = []
    for count in (1, 2, 3):
        threads(count)
        together = paged_attention(*step, rule)
        singly = [paged_attention(*alone(step, row), rule) for row in range(len(lengths))]
        assert torch.equal(together, torch.cat(singly))
        results.append(together)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("place", ["keys", "values"])
@pytest.mark.parametrize("head_dim", [64, 20])
def test_nan_of_a_row_of_integers_comes_out_of_its_decode(make_step, place, head_dim):
    query, keys, values, batch = make_step([(1, 50), (1, 60)], 16, 2, 2, head_dim, torch.float32, torch.int8, 3)
    clean = paged_attention(query, keys, values, batch, AttentionRule(0.25))
    block = batch.block_tables[batch.slots[0], 2]
    (keys if place == "keys" else values)[block, 3, 1] = quantize_rows(torch.full((1, head_dim), torch.nan))
    first, second = paged_attention(query, keys, values, batch, AttentionRule(0.25)).view(2, 2, 2 * head_dim)
    assert first[1].isnan().all()
    assert torch.equal(torch.cat((first[0], second.flatten())), torch.cat((clean[0, : 2 * head_dim], clean[1])))


@pytest.mark.parametrize("query_len", [1, 30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bad_value", [torch.nan, torch.inf])
def test_a_query_that_is_none_over_integers_comes_out_as_nan_of_its_head_alone(make_step, query_len, dtype, bad_value):
    query, *others = make_step([(query_len, 50), (query_len, 60)], 16, 2, 2, 64, dtype, torch.int8, 3)
    clean = paged_attention(query, *others, AttentionRule(0.125)).view(-1, 4, 64)
    query[1, 0, 1, 20] = bad_value
    result = paged_attention(query, *others, AttentionRule(0.125)).view(-1, 4, 64)
    assert result[0, 3].isnan().all()
    assert torch.equal(result[0, :3], clean[0, :3])
    assert torch.equal(result[1:], clean[1:])


@pytest.mark.parametrize("query_len", [1, 30])
@pytest.mark.parametrize("place", ["query", "keys", "values"])
def test_nan_of_a_row_stays_in_that_row(make_step, query_len, place):
    query, keys, values, batch = make_step(
        [(query_len, 50), (query_len, 60)], 16, 2, 2, 16, torch.float32, torch.float32, 3
    )
    clean = paged_attention(query, keys, values, batch, AttentionRule(0.25))
    if place == "query":
        query[:, :query_len] = torch.nan
    else:
        block = batch.block_tables[batch.slots[0], 0]
        (keys if place == "keys" else values)[block, 0] = torch.nan
    result = paged_attention(query, keys, values, batch, AttentionRule(0.25))
    assert result[:query_len].isnan().all()
    assert torch.equal(result[query_len:], clean[query_len:])


@pytest.mark.parametrize("bad_value", [torch.nan, torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("place", ["keys", "values"])
@pytest.mark.parametrize("window", [None, 5])
def test_nan_of_a_token_stays_in_those_that_see_it(make_step, window, place, dtype, bad_value):
    asked = torch.float32 if dtype == torch.int8 else dtype
    query, keys, values, batch = make_step([(300, 300)], 16, 2, 2, 64, asked, dtype, 3)
    rule = AttentionRule(0.125, window=window)
    clean = paged_attention(query, keys, values, batch, rule)
    bad = 290
    block = batch.block_tables[batch.slots[0], bad // 16]
    poisoned = torch.full((2, 64), bad_value)
    poisoned = quantize_rows(poisoned) if dtype == torch.int8 else poisoned
    (keys if place == "keys" else values)[block, bad % 16] = poisoned
    result = paged_attention(query, keys, values, batch, rule)
    seen = slice(bad, bad + (window or 300))
    assert torch.equal(result[:bad], clean[:bad])
    # an infinite score may also be the end of a weight; of integers both are NaN
    if place == "values" or bad_value is torch.nan or dtype == torch.int8:
        assert not result[seen].isfinite().all(dim=-1).any()
    assert torch.equal(result[seen.stop :], clean[seen.stop :])


def test_tokens_of_padding_behind_the_rows_change_nothing(make_step):
    query, keys, values, batch = make_step([(1, 20), (9, 30)], 16, 2, 2, 16, torch.float32, torch.float32, 3)
    padded = torch.cat((query, torch.full((2, 6, 2, 16), torch.nan)), dim=1)
    result = paged_attention(padded, keys, values, batch, AttentionRule(0.25))
    assert result.shape[0] == 16
    assert torch.equal(result[:10], paged_attention(query, keys, values, batch, AttentionRule(0.25)))


def test_a_dtype_without_a_form_is_refused_by_name(make_step):
    step = make_step([(1, 20)], 16, 2, 2, 16, torch.float64, torch.float64, 3)
    with pytest.raises(UnsupportedDtypeError, match=r"^query: .*float64"):
        paged_attention(*step, AttentionRule(0.25))
