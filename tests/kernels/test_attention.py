"""Paged attention against the plain formula in float64, on ragged batches and a cache poisoned everywhere else."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.attention import AttentionRule, paged_attention

HEAD_DIM = 8


def formula(query, key, value, rule):
    """One sequence in float64: query [t, H, D], the last t of key and value [C, K, D] -> [t, H, D]."""
    query, key, value = (x.double() for x in (query, key, value))
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = torch.einsum("thd,chd->htc", query, key) * rule.scale
    if rule.soft_cap is not None:
        scores = rule.soft_cap * torch.tanh(scores / rule.soft_cap)
    context = key.shape[0]
    distance = torch.arange(context - query.shape[0], context)[:, None] - torch.arange(context)
    seen = (distance >= 0) & (distance < (rule.sliding_window or context))
    return torch.einsum("htc,chd->thd", scores.masked_fill(~seen, -torch.inf).softmax(-1), value)


def make_case(lengths, block_size, num_kv_heads, groups, seed):
    """(arguments of paged_attention without the rule, each row's (query, key, value)); lengths [(query, seq), ...]."""
    generator = torch.Generator().manual_seed(seed)
    lengths = sorted(lengths, key=lambda row: row[0] != 1)
    needed = [-(-seq // block_size) for _, seq in lengths]
    order = torch.randperm(sum(needed) + 2, generator=generator).tolist()
    keys = torch.full((len(order), block_size, num_kv_heads, HEAD_DIM), torch.nan)
    values = torch.full_like(keys, torch.nan)
    tables = torch.full((len(lengths), max(needed) + 1), 2**31 - 1, dtype=torch.int32)
    rows = []
    for row, (query_len, seq_len) in enumerate(lengths):
        blocks = torch.tensor([order.pop() for _ in range(needed[row])])
        tables[row, : needed[row]] = blocks
        query = torch.randn((query_len, num_kv_heads * groups, HEAD_DIM), generator=generator)
        key, value = torch.randn((2, seq_len, num_kv_heads, HEAD_DIM), generator=generator)
        place = torch.arange(seq_len)
        keys[blocks[place // block_size], place % block_size] = key
        values[blocks[place // block_size], place % block_size] = value
        rows.append((query, key, value))
    query_lens, seq_lens = zip(*lengths, strict=True)
    arguments = {
        "query": torch.cat([query for query, _, _ in rows]),
        "keys": keys,
        "values": values,
        "block_tables": tables,
        "seq_lens": torch.tensor(seq_lens, dtype=torch.int32),
        "query_starts": torch.tensor([0, *query_lens]).cumsum(0).int(),
        "num_decodes": sum(length == 1 for length in query_lens),
        "query_lens_host": query_lens,
        "seq_lens_host": seq_lens,
    }
    return arguments, rows


def run(arguments, rule):
    query, *rest = arguments.values()
    return paged_attention(query, *rest, rule)


row_lengths = st.integers(1, 40).flatmap(
    lambda seq: st.tuples(st.one_of(st.just(1), st.integers(1, seq)), st.just(seq))
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    lengths=st.lists(row_lengths, min_size=1, max_size=9),
    block_size=st.sampled_from([1, 4, 16]),
    heads=st.sampled_from([(1, 1), (2, 3), (3, 1), (1, 4)]),
    window=st.sampled_from([None, 1, 3, 16, 100]),
    soft_cap=st.sampled_from([None, 2.0]),
    seed=st.integers(0, 1000),
)
def test_any_ragged_batch_follows_the_formula_and_ignores_poison(lengths, block_size, heads, window, soft_cap, seed):
    arguments, rows = make_case(lengths, block_size, *heads, seed)
    rule = AttentionRule(HEAD_DIM**-0.5, window, soft_cap)
    expected = torch.cat([formula(*row, rule) for row in rows])
    torch.testing.assert_close(run(arguments, rule).double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gather_elements", [1, 4000, 1 << 20])
def test_rows_of_very_different_length_are_each_right_however_they_are_grouped(gather_elements, monkeypatch):
    monkeypatch.setattr("quire.kernels.attention.GATHER_ELEMENTS", gather_elements)
    lengths = [(1, length) for length in (1, 700, 16, 17, 300, 2, 690, 33)]
    arguments, rows = make_case(lengths, 16, 2, 2, seed=3)
    rule = AttentionRule(HEAD_DIM**-0.5)
    expected = torch.cat([formula(*row, rule) for row in rows])
    torch.testing.assert_close(run(arguments, rule).double(), expected, rtol=1e-4, atol=1e-5)


def test_a_prompt_gives_the_same_bits_whatever_shares_its_batch_with_it():
    crowd, _ = make_case([(20, 30), (1, 9), (7, 7)], 16, 2, 2, seed=5)
    alone = {
        **crowd,
        "query": crowd["query"][1:21],
        "block_tables": crowd["block_tables"][1:2],
        "seq_lens": crowd["seq_lens"][1:2],
        "query_starts": torch.tensor([0, 20], dtype=torch.int32),
        "num_decodes": 0,
        "query_lens_host": (20,),
        "seq_lens_host": (30,),
    }
    rule = AttentionRule(HEAD_DIM**-0.5)
    assert torch.equal(run(alone, rule), run(crowd, rule)[1:21])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close_to_the_formula(dtype):
    arguments, rows = make_case([(1, 20), (9, 9), (4, 30)], 8, 2, 2, seed=1)
    for name in ("query", "keys", "values"):
        arguments[name] = arguments[name].to(dtype)
    rule = AttentionRule(HEAD_DIM**-0.5)
    result = run(arguments, rule)
    assert result.dtype == dtype
    expected = torch.cat([formula(*row, rule) for row in rows])
    torch.testing.assert_close(result.double(), expected, rtol=5e-2, atol=3e-2)


@pytest.mark.parametrize(
    ("argument", "change"),
    [
        ("query", lambda x: x[:-1]),
        ("query", lambda x: x[:, :3]),
        ("keys", lambda x: x[..., :4]),
        ("values", lambda x: x.half()),
        ("block_tables", lambda x: x.long()),
        ("block_tables", lambda x: x[:, :1]),
        ("seq_lens", lambda x: x[:1]),
        ("query_starts", lambda x: x[1:]),
        ("num_decodes", lambda _: 2),
        ("query_lens_host", lambda _: (1, 9)),
        ("seq_lens_host", lambda x: x[:1]),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(argument, change):
    arguments, _ = make_case([(1, 20), (7, 8)], 8, 2, 2, seed=1)
    arguments[argument] = change(arguments[argument])
    with pytest.raises(ValueError, match=rf"^({argument}|query):"):
        run(arguments, AttentionRule(1.0))


def test_the_rule_of_a_layer_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        AttentionRule(1.0).scale = 2.0
