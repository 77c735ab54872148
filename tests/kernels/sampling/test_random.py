"""The generator is the published one, and its noise is what it says."""

import pytest
import torch

from quire.kernels.sampling.random import gumbel, philox, seed_key, uniform

KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_the_known_answers_of_its_authors(counter, key, expected):
    words = philox(tuple(torch.tensor([c]) for c in counter), tuple(torch.tensor([k]) for k in key))
    assert tuple(int(word) for word in words) == expected


def test_a_negative_seed_keeps_all_its_bits():
    low, high = seed_key(torch.tensor([-1, -(2**63), 2**40 + 7]))
    assert low.tolist() == [0xFFFFFFFF, 0, 7]
    assert high.tolist() == [0xFFFFFFFF, 0x80000000, 2**8]


def test_uniform_numbers_never_reach_an_end():
    ends = uniform(torch.tensor([0, 0xFFFFFFFF]))
    assert ends.tolist() == [2.0**-24, 1.0 - 2.0**-24]
    assert torch.isfinite(-(-ends.log()).log()).all()


def test_noise_depends_on_every_part_of_its_name_and_on_nothing_else():
    def noise(seed=1, position=2, output=3, first=0, groups=8, stream=0):
        columns = (torch.tensor([value]) for value in (seed, position, output, first))
        return gumbel(*columns, groups, stream)

    base = noise()
    assert torch.equal(base, noise())
    assert torch.equal(base[:, 16:], noise(first=4, groups=4)), "an item's number hung on where counting began"
    for other in (noise(seed=2), noise(seed=1 + 2**32), noise(position=3), noise(output=4), noise(stream=1)):
        assert not torch.isclose(base, other).any()


def test_noise_has_the_gumbel_distribution():
    zero = torch.zeros(1, dtype=torch.int64)
    noise = gumbel(zero + 5, zero, zero, zero, 50_000, 0).double()
    assert noise.mean().item() == pytest.approx(0.57722, abs=0.01)
    assert noise.var().item() == pytest.approx(torch.pi**2 / 6, abs=0.02)
