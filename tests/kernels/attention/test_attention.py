"""The attention reference against the plain formula in float64, on ragged batches and a cache poisoned elsewhere."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from look_ahead import last_visible

from quire.kernels.attention.attention import AttentionRule, PagedBatch, paged_attention, paged_attention_reference
from quire.kernels.attention.int8_rows import dequantize_rows, quantize_rows
from quire.kernels.attention.window import Chunk

HEAD_DIM = 8


def formula(query, key, value, rule, sinks=None, last=None):
    """One sequence in float64: query [t, H, D], the last t of key and value [C, K, D] -> [t, H, D].

    last [t]: the last position that each token sees, where it is not its own.
    """
    query, key, value = (x.double() for x in (query, key, value))
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = torch.einsum("thd,chd->htc", query, key) * rule.scale
    if rule.soft_cap is not None:
        scores = rule.soft_cap * torch.tanh(scores / rule.soft_cap)
    context = key.shape[0]
    own, others = torch.arange(context - query.shape[0], context)[:, None], torch.arange(context)
    seen = others <= (own if last is None else last[:, None])
    if isinstance(rule.window, Chunk):
        seen &= others // rule.window.size >= own // rule.window.size
    elif rule.window is not None:
        seen &= others > own - rule.window
    weights = scores.masked_fill(~seen, -torch.inf).exp()
    total = weights.sum(-1) + (0.0 if sinks is None else sinks.double().exp()[:, None])
    return torch.einsum("htc,chd->thd", weights / total[..., None], value)


def make_case(lengths, block_size, num_kv_heads, groups, seed, padding=0):
    """(query, keys, values, batch, each row's (query, key, value)); lengths [(query, seq), ...]."""
    generator = torch.Generator().manual_seed(seed)
    lengths = sorted(lengths, key=lambda row: row[0] != 1)
    needed = [-(-seq // block_size) for _, seq in lengths]
    order = torch.randperm(sum(needed) + 2, generator=generator).tolist()
    keys = torch.full((len(order), block_size, num_kv_heads, HEAD_DIM), torch.nan)
    values = torch.full_like(keys, torch.nan)
    slots = torch.randperm(len(lengths) + 2, generator=generator)[: len(lengths)]
    tables = torch.full((len(lengths) + 2, max(needed) + 1), 2**31 - 1, dtype=torch.int32)
    rows = []
    for slot, num_blocks, (query_len, seq_len) in zip(slots.tolist(), needed, lengths, strict=True):
        blocks = torch.tensor([order.pop() for _ in range(num_blocks)])
        tables[slot, :num_blocks] = blocks
        query = torch.randn((query_len, num_kv_heads * groups, HEAD_DIM), generator=generator)
        key, value = torch.randn((2, seq_len, num_kv_heads, HEAD_DIM), generator=generator)
        place = torch.arange(seq_len)
        keys[blocks[place // block_size], place % block_size] = key
        values[blocks[place // block_size], place % block_size] = value
        rows.append((query, key, value))
    query_lens, seq_lens = zip(*lengths, strict=True)
    batch = PagedBatch(
        block_tables=tables,
        slots=slots.int(),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        query_starts=torch.tensor([0, *query_lens]).cumsum(0).int(),
        num_decodes=sum(length == 1 for length in query_lens),
        query_lens_host=query_lens,
        seq_lens_host=seq_lens,
        schedules={},
    )
    flat = torch.cat(
        [*(query for query, _, _ in rows), torch.full((padding, num_kv_heads * groups, HEAD_DIM), torch.nan)]
    )
    query = flat.view(len(flat), num_kv_heads, groups, HEAD_DIM).transpose(0, 1).contiguous()
    return query, keys, values, batch, rows


def wanted(rows, rule, sinks=None, last=None):
    lasts = [None] * len(rows) if last is None else last.split([len(query) for query, _, _ in rows])
    return torch.cat([formula(*row, rule, sinks, own) for row, own in zip(rows, lasts, strict=True)]).flatten(1)


row_lengths = st.integers(1, 70).flatmap(
    lambda seq: st.tuples(st.one_of(st.just(1), st.integers(1, seq)), st.just(seq))
)


@settings(max_examples=150)
@given(
    lengths=st.lists(row_lengths, min_size=1, max_size=9),
    block_size=st.sampled_from([1, 4, 16]),
    heads=st.sampled_from([(1, 1), (2, 3), (3, 1), (1, 4)]),
    window=st.sampled_from([None, 1, 3, 16, 100, Chunk(1), Chunk(7), Chunk(32)]),
    soft_cap=st.sampled_from([None, 2.0]),
    with_sinks=st.booleans(),
    ahead=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_ragged_batch_follows_the_formula_and_ignores_poison(
    lengths, block_size, heads, window, soft_cap, with_sinks, ahead, seed
):
    query, keys, values, batch, rows = make_case(lengths, block_size, *heads, seed, padding=3)
    rule = AttentionRule(HEAD_DIM**-0.5, window, soft_cap, looks_ahead=ahead)
    sinks = torch.linspace(-2, 2, heads[0] * heads[1]) if with_sinks else None
    last = last_visible(list(zip(batch.query_lens_host, batch.seq_lens_host, strict=True)), seed)
    batch = dataclasses.replace(batch, last_visible=last)
    result = paged_attention_reference(query, keys, values, batch, rule, sinks)[: batch.num_tokens]
    expected = wanted(rows, rule, sinks, last if ahead else None)
    torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [20, Chunk(24)])
def test_no_block_before_the_oldest_position_is_even_looked_up(window):
    query, keys, values, batch, rows = make_case([(1, 50), (3, 70)], 4, 2, 2, seed=1)
    rule = AttentionRule(HEAD_DIM**-0.5, window)
    for slot, query_len, seq_len in zip(batch.slots, batch.query_lens_host, batch.seq_lens_host, strict=True):
        first = seq_len - query_len
        oldest = first // 24 * 24 if isinstance(window, Chunk) else first - 19
        batch.block_tables[slot, : oldest // 4] = 2**31 - 1
    result = paged_attention_reference(query, keys, values, batch, rule)
    torch.testing.assert_close(result.double(), wanted(rows, rule), rtol=1e-4, atol=1e-5)


def test_a_cache_of_8_bit_floats_is_multiplied_by_its_scales():
    query, keys, values, batch, rows = make_case([(1, 20), (9, 9), (4, 30)], 8, 2, 2, seed=1)
    scales = torch.tensor([0.5, 2.0])
    small = [(cache / scales[:, None]).to(torch.float8_e4m3fn) for cache in (keys, values)]
    rule = AttentionRule(HEAD_DIM**-0.5)
    exact = [
        (q, *((x / scales[:, None]).to(torch.float8_e4m3fn).float() * scales[:, None] for x in (k, v)))
        for q, k, v in rows
    ]
    result = paged_attention_reference(query, *small, batch, rule, None, scales, scales)
    torch.testing.assert_close(result.double(), wanted(exact, rule), rtol=1e-4, atol=1e-5)


def test_queries_of_a_cache_of_8_bit_integers_are_rounded_to_such_rows_too():
    query, keys, values, batch, rows = make_case([(1, 20), (9, 9), (4, 30)], 8, 2, 2, seed=1)
    rule = AttentionRule(HEAD_DIM**-0.5)
    rounded = [tuple(dequantize_rows(quantize_rows(x)) for x in row) for row in rows]
    result = paged_attention_reference(query, quantize_rows(keys), quantize_rows(values), batch, rule)
    torch.testing.assert_close(result.double(), wanted(rounded, rule), rtol=1e-4, atol=1e-5)
    exact = wanted([(q, k, v) for (q, _, _), (_, k, v) in zip(rows, rounded, strict=True)], rule)
    assert not torch.allclose(result.double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close_to_the_formula(dtype):
    query, keys, values, batch, rows = make_case([(1, 20), (9, 9), (4, 30)], 8, 2, 2, seed=1)
    rule = AttentionRule(HEAD_DIM**-0.5)
    result = paged_attention_reference(query.to(dtype), keys.to(dtype), values.to(dtype), batch, rule)
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), wanted(rows, rule), rtol=5e-2, atol=3e-2)


@pytest.mark.parametrize(
    ("argument", "change"),
    [
        ("query", lambda x: x[:, :-1]),
        ("query", lambda x: x.transpose(0, 1)),
        ("keys", lambda x: x[..., :4]),
        ("keys", lambda x: x.to(torch.float8_e4m3fn)),
        ("values", lambda x: x.half()),
        ("values", lambda x: x[:-1]),
        ("sinks", lambda _: torch.zeros(3)),
        ("sinks", lambda _: torch.zeros(8)[::2]),
        ("key_scale", lambda _: torch.ones(3)),
        ("value_scale", lambda _: torch.ones(2, dtype=torch.float64)),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(argument, change):
    query, keys, values, batch, _ = make_case([(1, 20), (7, 8)], 8, 2, 2, seed=1)
    arguments = {"query": query, "keys": keys, "values": values, "sinks": None, "key_scale": None, "value_scale": None}
    arguments[argument] = change(arguments[argument])
    with pytest.raises(ValueError, match=rf"^({argument}|query|keys|values):"):
        paged_attention(
            arguments["query"],
            arguments["keys"],
            arguments["values"],
            batch,
            AttentionRule(1.0),
            arguments["sinks"],
            arguments["key_scale"],
            arguments["value_scale"],
        )


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("block_tables", lambda x: x.long()),
        ("block_tables", lambda x: x.t()),
        ("slots", lambda x: x[:1]),
        ("seq_lens", lambda x: x[:1]),
        ("seq_lens", lambda x: x.repeat_interleave(2)[::2]),
        ("query_starts", lambda x: x[1:]),
        ("num_decodes", lambda _: 2),
        ("query_lens_host", lambda _: (1, 9)),
        ("seq_lens_host", lambda x: x[:1]),
        ("last_visible", lambda _: torch.zeros(8)),
        ("last_visible", lambda _: torch.zeros(7, dtype=torch.int32)),
        ("last_visible", lambda _: torch.zeros(16, dtype=torch.int32)[::2]),
    ],
)
def test_a_wrong_batch_is_refused_by_its_field(field, change):
    *_, batch, _ = make_case([(1, 20), (7, 8)], 8, 2, 2, seed=1)
    fields = {each.name: getattr(batch, each.name) for each in dataclasses.fields(batch) if each.init}
    fields[field] = change(fields[field])
    with pytest.raises(ValueError, match=rf"^{field}:"):
        PagedBatch(**fields)


def test_the_rule_of_a_layer_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        AttentionRule(1.0).scale = 2.0
