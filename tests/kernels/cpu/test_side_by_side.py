"""Matrices side by side: the native form against torch's, eager and on a tape."""

import pytest
import torch

from quire.kernels.cpu.tape import record
from quire.kernels.linear.side_by_side import side_by_side, side_by_side_reference

pytestmark = pytest.mark.sampled(12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("widths", [(5,), (16, 1, 7), (300, 300)])
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_every_column_is_where_it_belongs(rows, widths, dtype):
    parts = [torch.randn(rows, width, generator=torch.Generator().manual_seed(width)).to(dtype) for width in widths]
    assert torch.equal(side_by_side(*parts), side_by_side_reference(*parts))


@torch.inference_mode()
def test_a_tape_gives_what_calls_give():
    left, right = torch.zeros(8, 5), torch.zeros(8, 3)
    tape = record(lambda: side_by_side(left, right), 8, 1)
    for count in (8, 3):
        left.normal_()
        right.normal_()
        assert torch.equal(tape.replay(count, 1), torch.cat((left, right), 1)[:count])


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([torch.ones(3, 2)], r"others\[0\]: expected shape \[2, any\]"),
        ([torch.ones(2, 2), torch.ones(2, 2).half()], r"others\[1\]: expected torch\.float32"),
        ([torch.ones(3, 2).T], r"others\[0\]: must be contiguous"),
    ],
)
def test_wrong_parts_are_refused_by_name(others, words):
    with pytest.raises(ValueError, match=words):
        side_by_side(torch.ones(2, 4), *others)
