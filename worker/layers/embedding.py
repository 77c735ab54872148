"""The vocabulary, dealt out to the ranks by rows: as the input embedding, as the output head, or as both when tied."""

import torch
from torch.nn.functional import linear

from quire.kernels.embedding import embed_shard
from quire.worker.build import BuildContext
from quire.worker.shard import Part, ShardedModule, Slice, whole


class Vocabulary(ShardedModule):
    """One matrix [vocab_size, hidden]. Ranks hold equally many rows; the last ones may hold padding, even only that."""

    def __init__(self, context: BuildContext, vocab_size: int, hidden: int) -> None:
        super().__init__()
        self.group = context.group
        self.vocab_size = vocab_size
        num_rows = -(-vocab_size // self.group.size)
        start = min(self.group.rank * num_rows, vocab_size)
        self.share = Slice(vocab_size, start, min(start + num_rows, vocab_size))
        self.weight: torch.Tensor
        self.declare("weight", context.dtype, (Part("", (self.share, whole(hidden))),), num_rows)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> [T, hidden]"""
        return self.group.all_reduce(embed_shard(token_ids, self.weight, self.share.start, self.share.length))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[S, hidden] -> float32 [S, vocab_size], complete on every rank and without the padding."""
        shares = self.group.all_gather(linear(hidden, self.weight))
        return shares[:, : self.vocab_size].float()
