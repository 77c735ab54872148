"""The vocabulary, dealt out to the ranks by rows: as the input embedding, as the output head, or as both when tied; and
small tables that every rank holds."""

import torch

from quire.kernels.linear.pack import is_blocked
from quire.kernels.rows import scale
from quire.kernels.sampling.score import best
from quire.worker.batch import Embedded
from quire.worker.build_context import BuildContext
from quire.worker.weights.parts import Part, consecutive, vocabulary_share, whole
from quire.worker.weights.shard import ShardedModule


class Vocabulary(ShardedModule):
    """One matrix [vocab_size, hidden]. Ranks hold equally many rows; the last ones may hold padding, even only that."""

    def __init__(
        self,
        context: BuildContext,
        vocab_size: int,
        hidden: int,
        *,
        looked_up: bool = True,
        multiplied: bool = True,
        scale: float = 1.0,
    ) -> None:
        """`looked_up`: an input embedding; `multiplied`: an output head. A tied one is both.

        `scale`: what is looked up is multiplied by it.
        """
        super().__init__()
        self.scheme = context.scheme
        self.looked_up, self.multiplied = looked_up, multiplied
        self.in_form = self.scheme.looks_up or not looked_up
        """The scheme stores it; else it is dense, and so is what is looked up."""
        self.hidden, self.dtype = hidden, context.dtype
        self.factor = scale
        self.group = context.group
        self.vocab_size = vocab_size
        is_tied = looked_up and multiplied
        self.share = vocabulary_share(vocab_size, self.group.rank, self.group.size, is_tied=is_tied)
        rows = (("", self.share),)
        self.weight: torch.Tensor
        if self.in_form:
            self.scheme.create(self, rows, whole(hidden), context.dtype)
        else:
            self.declare("weight", context.dtype, consecutive(rows, whole(hidden)))

    def finish(self) -> None:
        """Turn what was loaded into what is read. A tied head beside a dense embedding shares its weight, unless that
        is multiplied in a form that nobody looks up."""
        if self.in_form:
            self.scheme.finish(self)
        elif self.multiplied:
            self.head = ShardedModule()
            self.head.register_parameter("weight", self.get_parameter("weight"))
            self.scheme.finish(self.head)
            packed = self.head._parameters.get("weight")
            if packed is not None and is_blocked(packed):
                self.register_parameter("weight", packed)

    def embed(self, token_ids: torch.Tensor, embedded: Embedded | None = None) -> torch.Tensor:
        """int64 [T] -> [T, hidden], with `embedded` in place of what it has a row for."""
        looked_up = self.group.all_reduce(self._rows(token_ids))
        if self.factor != 1.0:
            looked_up = scale(looked_up, self.factor)
        return looked_up if embedded is None else embedded.put_into(looked_up)

    def _rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> [T, hidden]: zeros where the token is another rank's."""
        return self.scheme.look_up(self, token_ids, self.share.start, self.share.filled, self.hidden, self.dtype)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[S, hidden] -> [S, vocab_size], complete on every rank and without the padding."""
        return self.group.all_gather(self._product(hidden))[:, : self.vocab_size]

    def best(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[S, hidden] -> likeliest ids int64 [S], the lowest among equals, and whether the row is finite, bool [S].

        Each rank reduces its own share, so that 8 bytes a row are gathered and not the logits.
        """
        if self.share.filled:
            value, token_id = best(self._product(hidden)[:, : self.share.filled])
        else:  # nothing but padding: any other rank's is better
            value = hidden.new_full((hidden.shape[0],), -torch.inf, dtype=torch.float32)
            token_id = torch.zeros_like(value, dtype=torch.int64)
        if self.group.size == 1:
            return token_id, value.isfinite()
        own = torch.stack((value.view(torch.int32), (token_id + self.share.start).int()), dim=-1)
        values, ids = self.group.all_gather(own).view(-1, self.group.size, 2).unbind(-1)
        # ranks hold rising runs of ids, so the first of equal values is the lowest id; NaN counts as the greatest
        winner = values.contiguous().view(torch.float32).max(dim=-1, keepdim=True)
        return ids.gather(1, winner.indices).squeeze(1).long(), winner.values.squeeze(1).isfinite()

    def _product(self, hidden: torch.Tensor) -> torch.Tensor:
        """[S, hidden] -> this rank's share of the logits, with its padding."""
        return self.scheme.apply(self if self.in_form else self.head, hidden, None)


class Table(ShardedModule):
    """Learned rows [size, hidden], whole on every rank: positions, token types."""

    def __init__(self, context: BuildContext, size: int, hidden: int) -> None:
        super().__init__()
        self.declare("weight", context.dtype, (Part("", (whole(size), whole(hidden))),))

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> [T, hidden]"""
        return self.stored("weight").index_select(0, indices)
