"""The kernel that appends sampled tokens against its reference, in the interpreter."""

import pytest
import torch

from quire.kernels.gpu.sampling.append_tokens import ROWS, append_tokens
from quire.kernels.sampling.append_tokens import append_tokens_reference


@pytest.mark.parametrize("num_rows", [0, 1, 5, ROWS, ROWS + 1])
def test_any_number_of_rows_equals_the_reference(num_rows):
    generator = torch.Generator().manual_seed(num_rows)
    num_slots, capacity = num_rows + 3, 9
    tokens = torch.randint(0, 150_000, (num_slots, capacity), generator=generator).int()
    known = torch.randint(0, capacity, (num_slots,), generator=generator)
    slots = torch.randperm(num_slots, generator=generator)[:num_rows]
    token_ids = torch.randint(0, 150_000, (num_rows,), generator=generator)
    expected = tokens.clone(), known.clone()
    append_tokens(tokens, known, slots, token_ids)
    append_tokens_reference(*expected, slots, token_ids)
    assert torch.equal(tokens, expected[0])
    assert torch.equal(known, expected[1])
