"""Philox-4x32-10: random numbers that are a pure function of a key and a counter.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Arithmetic is on unsigned
32-bit words, kept in int64 tensors: their products wrap, and the words of a wrapped product are still right.

Shape legend: every argument broadcasts with every other.
"""

import torch

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
_ROUNDS = 10

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def philox(counter: Words, key: tuple[torch.Tensor, torch.Tensor]) -> Words:
    """Four random words for each counter of four words under a key of two. All are int64 holding [0, 2**32)."""
    c0, c1, c2, c3 = torch.broadcast_tensors(*counter)  # type: ignore[no-untyped-call]
    # words 0 and 2 side by side, and crosswise 1 and 3: two words then take one operation
    even, odd = torch.stack((c0, c2)), torch.stack((c3, c1))
    pair = (2, *(1 for _ in c0.shape))
    multipliers = even.new_tensor(_MULTIPLIERS).view(pair)
    weyl = even.new_tensor(_WEYL[::-1]).view(pair)
    keys = torch.stack(torch.broadcast_tensors(key[1], key[0]))  # type: ignore[no-untyped-call]
    for _ in range(_ROUNDS):
        product = even * multipliers
        even = ((product >> 32) & _WORD).bitwise_xor_(odd).bitwise_xor_(keys).flip(0)
        odd = product & _WORD
        keys = (keys + weyl) & _WORD
    return even[0], odd[1], even[1], odd[0]


def seed_key(seeds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The two key words of signed 64-bit seeds."""
    return seeds & _WORD, (seeds >> 32) & _WORD


def uniform(words: torch.Tensor) -> torch.Tensor:
    """float32 in [2**-24, 1 - 2**-24], evenly spaced: the 23 high bits of each word, moved to the cell's middle.

    Neither end is reached, so two logarithms of it are always finite.
    """
    return (words >> 9).float().add_(0.5).mul_(2.0**-23)


def gumbel(
    seeds: torch.Tensor,
    positions: torch.Tensor,
    output_index: torch.Tensor,
    first_group: torch.Tensor,
    num_groups: int,
    stream: int,
) -> torch.Tensor:
    """Standard Gumbel noise, float32 [S, 4 * num_groups].

    Entry j of row s belongs to item 4 * first_group[s] + j. Its number is word `item % 4` of the block with key
    seeds[s] and counter (positions[s], output_index[s], item // 4, stream); all arguments are int64 [S].
    """
    groups = first_group[:, None] + torch.arange(num_groups, device=seeds.device)
    k0, k1 = seed_key(seeds[:, None])
    counter = (
        (positions[:, None] & _WORD).expand_as(groups),
        (output_index[:, None] & _WORD).expand_as(groups),
        groups,
        torch.full_like(groups, stream),
    )
    numbers = uniform(torch.stack(philox(counter, (k0, k1)), dim=-1)).flatten(1)
    return numbers.log_().neg_().log_().neg_()
