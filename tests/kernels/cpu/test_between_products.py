"""Compiled calls between a step's products, which few models make, against their references."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.attention.query_factors import (
    query_factors,
    query_factors_reference,
    scale_queries,
    scale_queries_reference,
)
from quire.kernels.attention.rope_store_kv import rope_store_kv, rope_store_kv_reference
from quire.kernels.attention.values import with_values, with_values_reference
from quire.kernels.experts.counted import (
    count_inputs,
    count_inputs_reference,
    scale_weights,
    scale_weights_reference,
)
from quire.kernels.linear.activation import gated, gated_activation
from quire.kernels.rows import add, widen

DTYPES = [torch.float32, torch.bfloat16, torch.float16]

pytestmark = [pytest.mark.usefixtures("instruction_set"), pytest.mark.sampled(40)]
common = settings(max_examples=25)


def random(shape, dtype, seed, spread=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread).to(dtype)


rows = st.sampled_from([0, 1, 2, 17])
dtypes = st.sampled_from(DTYPES)
seeds = st.integers(0, 1000)


@common
@given(rows=rows, width=st.sampled_from([1, 16, 33, 768]), dtype=dtypes, of_all=st.booleans(), seed=seeds)
def test_rows_are_added_and_widened_to_the_bit(rows, width, dtype, of_all, seed):
    """`of_all`: one row is added to all."""
    x = random((rows, width), dtype, seed)
    y = random((width,) if of_all else (rows, width), dtype, seed + 1)
    assert torch.equal(add(x, y), x + y)
    assert torch.equal(widen(x), x.float())


@common
@given(
    rows=rows,
    heads=st.sampled_from([(1, 1), (2, 1), (3, 2)]),
    head_dim=st.sampled_from([8, 20, 64]),
    dtype=dtypes,
    normed=st.booleans(),
    keys_too=st.booleans(),
    seed=seeds,
)
def test_values_are_those_of_the_reference(rows, heads, head_dim, dtype, normed, keys_too, seed):
    (queries, kv_heads), size = heads, heads[1] * head_dim
    product = random((rows, (queries + (1 if keys_too else 2) * kv_heads) * head_dim), dtype, seed, 3.0)
    gains = torch.ones(head_dim, dtype=dtype) if normed else None
    got = with_values(product, size, head_dim, gains, 1e-6, keys_too=keys_too)
    wanted = with_values_reference(product, size, head_dim, gains, 1e-6, keys_too=keys_too)
    assert torch.equal(got[:, :-size], wanted[:, :-size])
    torch.testing.assert_close(got, wanted)


@common
@given(rows=rows, kv_heads=st.sampled_from([1, 3]), dtype=dtypes, ahead=st.sampled_from([0, 1]), seed=seeds)
def test_queries_count_more_with_their_position(rows, kv_heads, dtype, ahead, seed):
    positions = torch.randint(0, 2**20, (rows,), generator=torch.Generator().manual_seed(seed))
    factors = query_factors(positions, ahead, 16, 0.7)
    torch.testing.assert_close(factors, query_factors_reference(positions, ahead, 16, 0.7), rtol=1e-6, atol=0)
    query = random((kv_heads, rows, 2, 20), dtype, seed)
    assert torch.equal(scale_queries(query, factors), scale_queries_reference(query, factors))


@common
@given(rows=rows, k=st.sampled_from([1, 3]), dtype=dtypes, seed=seeds)
def test_experts_count_what_the_reference_says(rows, k, dtype, seed):
    weights, factors = random((rows, k), torch.float32, seed), random((5,), dtype, seed + 1)
    ids = torch.randint(-1, 5, (rows, k), generator=torch.Generator().manual_seed(seed)).int()
    assert torch.equal(scale_weights(weights, ids, factors), scale_weights_reference(weights, ids, factors))
    x, first = random((rows, 33), dtype, seed), weights[:, :1].contiguous()
    assert all(map(torch.equal, count_inputs(x, first), count_inputs_reference(x, first)))


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gates_open_values_that_lie_apart(dtype, kind):
    gates, vectors = random((5, 20), dtype, 1, 4.0), random((5, 3, 20), dtype, 2)
    together = torch.cat((gates, vectors[:, 1]), 1)
    assert torch.equal(gated(gates, vectors[:, 1], kind), gated_activation(together, kind))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_norm", [False, True])
def test_queries_alone_are_those_beside_keys_and_nothing_is_stored(dtype, with_norm):
    qkv, angles = random((5, 8 * 20), dtype, 1), random((5, 7), torch.float32, 2)
    weights = random((2, 20), dtype, 3) if with_norm else (None, None)
    caches = torch.full((2, 2, 2, 4, 2, 20), 7.0, dtype=dtype)
    step = angles.cos(), angles.sin()
    wanted = rope_store_kv(qkv, *step, *caches[0], torch.arange(5), *weights, 1e-6, None, None)
    alone = qkv[:, :80].contiguous(), *step, *caches[1], None, *weights, 1e-6, None, None
    for form in (rope_store_kv, rope_store_kv_reference):
        query = form(*alone)
        torch.testing.assert_close(query, wanted, rtol=0.02, atol=0.02)
        assert (caches[1] == 7).all()
    assert torch.equal(rope_store_kv(*alone), wanted)
