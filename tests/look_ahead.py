"""Items strewn over the tokens of a step, as layers that look ahead see them."""

import random
from collections.abc import Sequence

import torch


def last_visible(lengths: Sequence[tuple[int, int]], seed: int) -> torch.Tensor:
    """int32 [T] for rows of (tokens to run, tokens of the sequence): an item's last position for each of its tokens.

    Items have up to 80 tokens, or one, which is text.
    """
    drawn, column = random.Random(seed), list[int]()
    for query_len, seq_len in lengths:
        position = seq_len - query_len
        while position < seq_len:
            size = min(drawn.choice((1, 1, 3, 80)), seq_len - position)
            column += [position + size - 1] * size
            position += size
    return torch.tensor(column, dtype=torch.int32)
