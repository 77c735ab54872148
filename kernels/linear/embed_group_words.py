"""Look tokens up in one rank's share of a vocabulary of codes as GPUs read them: words, also those of a tied head.

`kernels/linear/embed_groups.py` is the same on codes as processors read them.
"""

import torch

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation
from quire.kernels.linear.code_tables import Table
from quire.kernels.linear.embedding import check_share, embed_shard_reference
from quire.kernels.linear.linear_group_words import check_words, dequantize_words_reference
from quire.kernels.linear.linear_groups import Bits


def embed_group_words_reference(
    token_ids: torch.Tensor,
    words: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    first: int,
    count: int,
    hidden: int,
    bits: Bits,
    dtype: torch.dtype,
    unit: torch.Tensor | None = None,
    table: Table = "",
) -> torch.Tensor:
    """Rows of the tokens `first <= id < first + count`, zeros for all others: the sum over ranks is the embedding.

    token_ids int64 [T] -> [T, hidden] of `dtype`. The weight [rows >= count, hidden] is as `linear_group_words` takes
    it; rows past `count` are padding. A number is the weight that is meant, rounded as `dequantize_words_reference`
    rounds it; a code of e2m1 for a zero with a sign means one without.
    """
    weight = dequantize_words_reference(words, scale, offset, bits, hidden, torch.float32, unit, table)
    return embed_shard_reference(token_ids, (weight + 0.0 if table == "e2m1" else weight).to(dtype), first, count)


def _check(
    token_ids: torch.Tensor,
    words: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    first: int,
    count: int,
    hidden: int,
    bits: Bits,
    dtype: torch.dtype,
    unit: torch.Tensor | None = None,
    table: Table = "",
) -> None:
    check_tensor("token_ids", token_ids, (None,), (torch.int64,), token_ids.device)
    check_contiguous(token_ids=token_ids)
    if dtype not in FLOATS:
        raise ValueError(f"dtype: must be one of {', '.join(map(str, FLOATS))}, got {dtype}")
    check_words(token_ids.device, hidden, words, scale, offset, bits, unit, table)
    check_share(first, count, scale.shape[1])


embed_group_words = Operation(
    embed_group_words_reference,
    _check,
    {"cuda": "quire.kernels.gpu.quantized.embed_group_words:embed_group_words"},
)
