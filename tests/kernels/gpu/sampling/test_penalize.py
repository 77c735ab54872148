"""The kernels that change logits in place against their references, in the interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.gpu.sampling.penalize import mask_tokens, penalize
from quire.kernels.gpu.sampling.tiles import CHUNK, HISTORY_BLOCK, HISTORY_PROGRAMS
from quire.kernels.sampling.penalize import mask_tokens_reference, penalize_reference

pytestmark = pytest.mark.usefixtures("poisoned_results")
SLOTS = 6


def both(kernel, reference, logits, *arguments):
    """Results of the two on copies of `logits`, a view of wider rows."""
    wide = torch.full((logits.shape[0], logits.shape[1] + 3), 77.0)
    view = wide[:, : logits.shape[1]]
    view.copy_(logits)
    expected = logits.clone()
    kernel(view, *arguments)
    reference(expected, *arguments)
    assert (wide[:, logits.shape[1] :] == 77.0).all(), "written past the end of a row"
    return view, expected


def history(lengths, vocab, generator):
    """tokens with some ids outside the vocabulary, slots, num_tokens and num_prompt of each row."""
    longest = max([*lengths, 1]) + 2
    tokens = torch.randint(-1, vocab + 2, (SLOTS, longest), dtype=torch.int32, generator=generator)
    known = torch.tensor(lengths, dtype=torch.int64)
    prompt = (known * torch.rand(len(lengths), generator=generator)).long()
    return tokens, torch.randperm(SLOTS, generator=generator)[: len(lengths)], known, prompt


@settings(max_examples=40)
@given(st.lists(st.integers(0, 60), max_size=4), st.sampled_from([1, 2, 9, 33, 700]), st.integers(0, 999))
def test_penalties_equal_the_reference(lengths, vocab, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(5, vocab, generator=generator)
    rows = torch.randperm(5, generator=generator)[: len(lengths)]
    factors = 0.5 + torch.rand(3, len(lengths), generator=generator)
    result, expected = both(penalize, penalize_reference, logits, rows, *history(lengths, vocab, generator), *factors)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


def test_a_history_longer_than_its_programs_take_at_once_is_counted_whole():
    length, vocab = HISTORY_BLOCK * HISTORY_PROGRAMS + 100, 50
    generator = torch.Generator().manual_seed(1)
    factors = 0.5 + torch.rand(3, 2, generator=generator)
    result, expected = both(
        penalize,
        penalize_reference,
        3 * torch.randn(2, vocab, generator=generator),
        torch.tensor([1, 0]),
        *history([length, 3], vocab, generator),
        *factors,
    )
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


@settings(max_examples=40)
@given(
    st.integers(0, 4),
    st.one_of(st.integers(1, 200), st.sampled_from([CHUNK - 1, CHUNK, CHUNK + 33])),
    st.integers(0, 999),
)
def test_masks_equal_the_reference(num_masked, vocab, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(5, vocab, generator=generator)
    rows = torch.randperm(5, generator=generator)[:num_masked]
    words = torch.randint(-(2**31), 2**31, (num_masked, -(-vocab // 32)), generator=generator)
    result, expected = both(mask_tokens, mask_tokens_reference, logits, rows, words.to(torch.int32))
    assert torch.equal(result, expected)


def test_a_mask_leaves_nan_where_it_was_allowed_and_hides_it_where_not():
    logits = torch.full((1, 40), torch.nan)
    result, _ = both(mask_tokens, mask_tokens_reference, logits, torch.tensor([0]), torch.tensor([[-2, -1]]).int())
    assert result[0, 0] == -torch.inf
    assert result[0, 1:].isnan().all()
