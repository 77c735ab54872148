"""Writing to the paged cache touches the named places, all of them and nothing else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.block_copy import copy_blocks
from quire.kernels.kv_store import store_kv


def cache(num_blocks=6, block_size=4, dtype=torch.float32):
    return torch.full((2, num_blocks, block_size, 2, 3), torch.nan, dtype=dtype)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 23), unique=True, max_size=24), st.sampled_from([torch.float32, torch.bfloat16]))
def test_tokens_land_in_their_slots_and_the_rest_stays_untouched(slots, dtype):
    keys, values = cache(dtype=dtype)
    # views with gaps, as the layer passes them: key and value are cut out of one product
    product = torch.arange(len(slots) * 18, dtype=torch.float32).view(len(slots), 6, 3) / 64
    key, value = product[:, 2:4], product[:, 4:6]
    store_kv(key, value, keys, values, torch.tensor(slots, dtype=torch.int64))
    for stored, given_values in ((keys, key), (values, value)):
        flat = stored.view(24, 2, 3)
        assert torch.equal(flat[slots], given_values.to(dtype))
        assert flat[[slot for slot in range(24) if slot not in slots]].isnan().all()


def test_copied_blocks_are_read_before_any_is_written():
    keys, values = torch.arange(2 * 6 * 4 * 6, dtype=torch.float32).view(2, 6, 4, 2, 3)
    before = keys.clone(), values.clone()
    copy_blocks(keys, values, torch.tensor([0, 1, 0]), torch.tensor([1, 2, 5]))
    for old, new in zip(before, (keys, values), strict=True):
        assert torch.equal(new, old[[0, 0, 1, 3, 4, 0]])


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda k, v: store_kv(torch.zeros(2, 2, 3), torch.zeros(1, 2, 3), k, v, torch.zeros(2).long()), "value"),
        (lambda k, v: store_kv(torch.zeros(2, 1, 3), torch.zeros(2, 1, 3), k, v, torch.zeros(2).long()), "keys"),
        (lambda k, v: store_kv(*torch.zeros(2, 2, 2, 3), k, v.half(), torch.zeros(2).long()), "values"),
        (lambda k, v: store_kv(*torch.zeros(2, 2, 2, 3), k, v, torch.zeros(2)), "slot_mapping"),
        (lambda k, v: store_kv(*torch.zeros(2, 2, 2, 3), k[:, ::2], v[:, ::2], torch.zeros(2).long()), "keys"),
        (lambda k, v: copy_blocks(k, v, torch.zeros(1), torch.zeros(1)), "sources"),
        (lambda k, v: copy_blocks(k, v, torch.zeros(1).long(), torch.zeros(2).long()), "destinations"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(call, argument):
    with pytest.raises(ValueError, match=f"^{argument}:"):
        call(*cache())
