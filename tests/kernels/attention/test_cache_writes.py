"""Writing to the paged cache touches the named places, all of them and nothing else; so does preparing a step."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.attention.block_copy import copy_blocks
from quire.kernels.attention.rope_store_kv import rope_store_kv
from quire.kernels.prepare_inputs import StepInputs, prepare_inputs

NUM_BLOCKS, BLOCK_SIZE, K, D = 6, 4, 2, 8
PLACES = NUM_BLOCKS * BLOCK_SIZE
E4M3 = torch.float8_e4m3fn


def cache(dtype=torch.float32):
    return torch.full((2, NUM_BLOCKS, BLOCK_SIZE, K, D), torch.nan).to(dtype)


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def turned(x, angles):
    """Pairs (i, i + half) of x [T, heads, D] as complex numbers, times the angle's phase; float64."""
    half = angles.shape[1]
    turn = torch.polar(torch.ones_like(angles, dtype=torch.float64), angles.double())[:, None]
    pairs = torch.complex(x[..., :half].double(), x[..., half : 2 * half].double()) * turn
    return torch.cat((pairs.real, pairs.imag, x[..., 2 * half :].double()), -1)


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, PLACES - 1), unique=True, max_size=PLACES),
    st.sampled_from([1, 2, 7]),
    st.sampled_from([0, 2, 4]),
    st.booleans(),
    st.integers(0, 99),
)
def test_heads_are_normed_and_turned_and_land_in_their_slots(slots, groups, half, normed, seed):
    num_tokens, num_heads = len(slots), groups * K
    qkv = 3 * randn(num_tokens, (num_heads + 2 * K) * D, seed=seed)
    angles = 100 * torch.rand((num_tokens, half), generator=torch.Generator().manual_seed(seed))
    weights = randn(2, D, seed=seed) if normed else (None, None)
    keys, values = cache()
    query = rope_store_kv(
        qkv, angles.cos(), angles.sin(), keys, values, torch.tensor(slots).long(), *weights, 1e-5, None, None
    )
    *rotated, value = qkv.view(num_tokens, num_heads + 2 * K, D).split((num_heads, K, K), 1)
    if normed:
        rotated = [
            x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w for x, w in zip(rotated, weights, strict=True)
        ]
    wanted_query, wanted_key = (turned(x, angles) for x in rotated)
    assert query.shape == (K, num_tokens, groups, D)
    assert query.is_contiguous()
    for head in range(num_heads):
        torch.testing.assert_close(
            query[head // groups, :, head % groups].double(), wanted_query[:, head], rtol=1e-4, atol=1e-4
        )
    places = [cache.view(PLACES, K, D) for cache in (keys, values)]
    torch.testing.assert_close(places[0][slots].double(), wanted_key, rtol=1e-4, atol=1e-4)
    assert torch.equal(places[1][slots], value)
    untouched = [slot for slot in range(PLACES) if slot not in slots]
    assert all(place[untouched].isnan().all() for place in places)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, E4M3])
def test_tokens_of_padding_are_stored_nowhere(dtype):
    keys, values = cache(dtype)
    scales = torch.ones((2, K)) if dtype == E4M3 else (None, None)
    qkv = randn(3, 4 * D + 2 * D)
    rope_store_kv(qkv, *torch.ones(2, 3, 4), keys, values, torch.tensor([-1, 5, -1]), None, None, 1e-5, *scales)
    for stored in (keys, values):
        finite = ~stored.float().view(PLACES, -1).isnan()
        assert finite.all(1).nonzero().tolist() == [[5]]
        assert finite.any(1).sum() == 1


def test_an_8_bit_cache_holds_each_head_over_its_scale_and_saturates():
    keys, values = cache(E4M3)
    qkv = torch.zeros((1, (K + 2 * K) * D))
    key, value = qkv.view(3, K, D)[1:]
    key[0, :3] = torch.tensor([0.5, -3.0, 1e6])
    key[1, :3] = torch.tensor([0.5, -3.0, -1e6])
    value[:, :2] = torch.tensor([7.0, 9.0])
    no_turn = torch.zeros((1, 0))
    key_scale, value_scale = torch.tensor([0.25, 0.5]), torch.tensor([1.0, 2.0])
    rope_store_kv(qkv, no_turn, no_turn, keys, values, torch.tensor([6]), None, None, 1e-5, key_scale, value_scale)
    stored_keys, stored_values = (cache.float().view(PLACES, K, D)[6] for cache in (keys, values))
    assert stored_keys[:, :3].tolist() == [[2.0, -12.0, 448.0], [1.0, -6.0, -448.0]]
    assert stored_values[:, :2].tolist() == [[7.0, 9.0], [3.5, 4.5]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, E4M3])
def test_copied_blocks_overwrite_their_destinations_and_nothing_else(dtype):
    keys, values = (8 * randn(2, NUM_BLOCKS, BLOCK_SIZE, K, D)).to(dtype)
    before = keys.clone(), values.clone()
    copy_blocks(keys, values, torch.tensor([0, 1, 0]), torch.tensor([3, 2, 5]))
    for old, new in zip(before, (keys, values), strict=True):
        assert torch.equal(new.float(), old.float()[[0, 1, 1, 0, 4, 0]])


def poisoned_inputs(num_tokens, num_rows, num_axes=1):
    buffer = torch.full((num_axes, num_tokens + 5), -77)  # an axis is longer than the step
    longs = torch.full((num_tokens,), -77), buffer[:, :num_tokens], torch.full((num_tokens,), -77)
    return StepInputs(*longs, *(torch.full((num_rows + extra,), -77).int() for extra in (1, 0, 0)))


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=5),
    st.integers(0, 3),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 3]),
    st.booleans(),
)
def test_a_step_is_read_from_the_tables_and_padded_to_its_buffers(lengths, padding, block_size, num_axes, shifted):
    num_rows, capacity = len(lengths), 16
    num_slots = num_rows + 1
    tokens = torch.arange(num_slots * capacity).view(num_slots, capacity).int() + 1000
    tables = torch.arange(num_slots * capacity).view(num_slots, capacity).int() * 3
    slots = list(range(num_rows, 0, -1))
    known = torch.full((num_slots,), 12)
    rows = torch.tensor([slots, [12 - c for c, _ in lengths], [n for _, n in lengths]], dtype=torch.int32).view(3, -1)
    expected = [
        (
            1000 + slot * capacity + p,
            p - 2 * slot * shifted,
            (slot * capacity + p // block_size) * 3 * block_size + p % block_size,
        )
        for slot, (computed, count) in zip(slots, lengths, strict=True)
        for p in range(computed, computed + count)
    ]
    expected_padded = expected + [(0, 0, -1)] * padding
    out = poisoned_inputs(len(expected_padded), num_rows, num_axes)
    # a wider upload than the step has rows: the kernel must mind the stride
    wide = torch.nn.functional.pad(rows, (0, 2), value=99)
    shifts = -2 * torch.arange(num_slots) if shifted else None
    prepare_inputs(tokens, known, tables, wide[:, :num_rows], block_size, out, shifts)
    for axis in out.positions:
        columns = out.token_ids, axis, out.slot_mapping
        assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected_padded
    counts = [count for _, count in lengths]
    assert out.query_starts.tolist() == [sum(counts[:row]) for row in range(num_rows + 1)]
    assert out.seq_lens.tolist() == [computed + count if count else 0 for computed, count in lengths]
    assert out.slots.tolist() == slots


def rope_store_kv_with(**changed):
    keys, values = cache()
    arguments = {
        "qkv": torch.zeros(2, 3 * K * D),
        "cos": torch.zeros(2, 4),
        "sin": torch.zeros(2, 4),
        "keys": keys,
        "values": values,
        "slot_mapping": torch.zeros(2).long(),
        "query_weight": None,
        "key_weight": None,
        "eps": 1e-5,
        "key_scale": None,
        "value_scale": None,
    }
    rope_store_kv(*(arguments | changed).values())


@pytest.mark.parametrize(
    ("changed", "argument"),
    [
        ({"qkv": torch.zeros(2, 3 * K * D - 1)}, "qkv"),
        ({"qkv": torch.zeros(2, 2 * K * D)}, "qkv"),
        ({"qkv": torch.zeros(2, 3 * K * D + D)}, "qkv"),
        ({"qkv": torch.zeros(3 * K * D, 2).T}, "qkv"),
        ({"cos": torch.zeros(2, 4).half()}, "cos"),
        ({"cos": torch.zeros(1, 4)}, "cos"),
        ({"cos": torch.zeros(2, 5), "sin": torch.zeros(2, 5)}, "cos"),
        ({"sin": torch.zeros(2, 3)}, "sin"),
        ({"keys": cache()[0].transpose(0, 1)}, "values"),
        ({"keys": cache()[0][:, ::2], "values": cache()[1][:, ::2]}, "keys"),
        ({"values": cache()[1].half()}, "values"),
        ({"slot_mapping": torch.zeros(2)}, "slot_mapping"),
        ({"query_weight": torch.ones(D)}, "key_weight"),
        ({"query_weight": torch.ones(D).half(), "key_weight": torch.ones(D).half()}, "query_weight"),
        ({"query_weight": torch.ones(D), "key_weight": torch.ones(D), "eps": 0.0}, "eps"),
        ({"key_scale": torch.ones(K), "value_scale": torch.ones(K)}, "key_scale"),
        ({"keys": cache(E4M3)[0], "values": cache(E4M3)[1]}, "key_scale"),
        ({"keys": cache(E4M3)[0], "values": cache(E4M3)[1], "value_scale": torch.ones(K)}, "key_scale"),
    ],
)
def test_a_wrong_argument_of_rope_store_kv_is_refused_by_its_name(changed, argument):
    with pytest.raises(ValueError, match=f"^{argument}:"):
        rope_store_kv_with(**changed)


def prepare_with(rows=None, block_size=4, known=None, shifts=None, **changed):
    tables = torch.zeros((2, 3, 5), dtype=torch.int32)
    rows = torch.zeros((3, 2), dtype=torch.int32) if rows is None else rows
    known = torch.zeros(3, dtype=torch.int64) if known is None else known
    prepare_inputs(tables[0], known, tables[1], rows, block_size, poisoned_inputs(4, 2)._replace(**changed), shifts)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: copy_blocks(*cache(), torch.zeros(1), torch.zeros(1)), "sources"),
        (lambda: copy_blocks(*cache(), torch.zeros(1).long(), torch.zeros(2).long()), "destinations"),
        (lambda: copy_blocks(*cache().transpose(2, 3), torch.zeros(1).long(), torch.zeros(1).long()), "keys"),
        (lambda: prepare_with(rows=torch.zeros(3, 2)), "rows"),
        (lambda: prepare_with(rows=torch.zeros((2, 3), dtype=torch.int32).T), "rows"),
        (lambda: prepare_with(known=torch.zeros(3).int()), "known"),
        (lambda: prepare_with(known=torch.zeros(2).long()), "known"),
        (lambda: prepare_with(block_size=0), "block_size"),
        (lambda: prepare_with(shifts=torch.zeros(3)), "shifts"),
        (lambda: prepare_with(shifts=torch.zeros(2).long()), "shifts"),
        (lambda: prepare_with(positions=torch.zeros((1, 3)).long()), "positions"),
        (lambda: prepare_with(positions=torch.zeros((3, 8)).long()[:, ::2]), "positions"),
        (lambda: prepare_with(query_starts=torch.zeros(2).int()), "query_starts"),
        (lambda: prepare_with(slot_mapping=torch.zeros(8).long()[::2]), "slot_mapping"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(call, argument):
    with pytest.raises(ValueError, match=f"^{argument}:"):
        call()
