"""The random numbers inside kernels are those of `quire.kernels.sampling.random`, bit by bit."""

import pytest
import torch
import triton
import triton.language as tl

from quire.kernels.gpu.sampling.random import gumbel, random_words
from quire.kernels.sampling.random import gumbel as gumbel_reference
from quire.kernels.sampling.random import philox, seed_key

COUNT = 64


@triton.jit
def numbers(seed, position, output_index, words, noise, first, STREAM: tl.constexpr, COUNT: tl.constexpr):
    items = first + tl.arange(0, COUNT)
    columns = tl.load(seed), tl.load(position), tl.load(output_index)
    tl.store(words + tl.arange(0, COUNT), random_words(*columns, items, STREAM).to(tl.int64))
    tl.store(noise + tl.arange(0, COUNT), gumbel(*columns, items, STREAM))


@pytest.mark.parametrize(
    ("seed", "position", "output_index", "first", "stream"),
    [
        (0, 0, 0, 0, 0),
        (0x299F31D0A4093822, 0x243F6A88, 0x85A308D3, 4 * 0x13198A2E, 1),
        (-1, 2**31 + 5, 2**32 - 1, 128, 1),
        (-(2**63), 7, 3, 131_072, 0),
    ],
)
def test_words_and_noise_equal_the_reference(seed, position, output_index, first, stream):
    columns = [torch.tensor([value]) for value in (seed, position, output_index)]
    words, noise = torch.empty(COUNT, dtype=torch.int64), torch.empty(COUNT)
    numbers[(1,)](*columns, words, noise, first, STREAM=stream, COUNT=COUNT)
    groups = torch.arange(first // 4, (first + COUNT) // 4)
    blocks = philox((columns[1], columns[2], groups, torch.tensor([stream])), seed_key(columns[0]))
    assert torch.equal(words, torch.stack(blocks, dim=-1).flatten())
    expected = gumbel_reference(*columns, torch.tensor([first // 4]), COUNT // 4, stream)
    torch.testing.assert_close(noise, expected[0], rtol=1e-5, atol=1e-5)


def test_words_are_the_known_answers_of_the_authors():
    """Salmon et al., 2011: all zeros, whose counter is that of position 0, output 0, items 0 to 3, stream 0."""
    zero = torch.zeros(1, dtype=torch.int64)
    words, noise = torch.empty(COUNT, dtype=torch.int64), torch.empty(COUNT)
    numbers[(1,)](zero, zero, zero, words, noise, 0, STREAM=0, COUNT=COUNT)
    assert words[:4].tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
