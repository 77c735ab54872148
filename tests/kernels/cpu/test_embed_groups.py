"""Rows looked up in packed codes: those of the reference to the bit, whatever lies beside the codes."""

import pytest
import torch
from coded_layers import DTYPES, GROUPS, coded_layer, same
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.cpu.linear.embed_groups import embed_groups
from quire.kernels.linear import linear_int8
from quire.kernels.linear.embed_groups import embed_groups_reference

pytestmark = [pytest.mark.usefixtures("instruction_set"), pytest.mark.sampled(40)]

LOOKED_UP = ["int8", *(form for form in GROUPS if " zeros " not in form)]


def stored(form, rows, hidden, seed=0):
    """(codes and what is beside them, their meaning) as a look-up takes them."""
    layer = coded_layer(form, rows, hidden, seed)
    if form == "int8":
        packed, scale = layer.weight
        return (packed, scale[:, None], None), (8, None, "")
    bits, _, unit, table = layer.how
    return layer.weight, (bits, unit, table)


def looked_up(look_up, ids, form, rows, hidden, dtype, first, count, seed=0):
    weight, (bits, unit, table) = stored(form, rows, hidden, seed)
    return look_up(ids, *weight, first, count, hidden, bits, dtype, unit, table)


@pytest.mark.parametrize("form", LOOKED_UP)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_the_share_are_looked_up_and_others_are_zero(form, dtype):
    """Of a last block that is not full, too; with more tokens than one thread takes."""
    ids = torch.cat((torch.tensor([100, 99, 138, 139, -1, 1 << 40]), torch.arange(400) % 45 + 98))
    made, wanted = (
        looked_up(one, ids, form, 41, 192, dtype, 100, 39) for one in (embed_groups, embed_groups_reference)
    )
    assert made.dtype == dtype
    assert same(made, wanted)
    assert not made[[1, 3, 4, 5]].any()
    assert made[[0, 2]].any(1).all()


@settings(max_examples=15)
@given(form=st.sampled_from(LOOKED_UP), rows=st.integers(1, 50), units=st.integers(1, 5), seed=st.integers(0, 99))
def test_any_shape_is_looked_up_to_the_bit(form, rows, units, seed):
    ids = torch.randint(-1, rows + 1, (7,), generator=torch.Generator().manual_seed(seed))
    made, wanted = (
        looked_up(one, ids, form, rows, 64 * units, torch.float32, 0, rows, seed)
        for one in (embed_groups, embed_groups_reference)
    )
    assert same(made, wanted)


@pytest.mark.parametrize("hidden", [4, 30, 131, 257])
def test_rows_of_integers_may_have_any_width(hidden):
    made = looked_up(embed_groups, torch.arange(20), "int8", 20, hidden, torch.float32, 0, 20)
    packed, scale = coded_layer("int8", 20, hidden).weight
    assert torch.equal(made, linear_int8.unpack(packed, 20, hidden).float() * scale[:, None])
