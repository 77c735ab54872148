"""The KV groups of the model: what an output holds of each, and how far back its tokens see.

Where a group has a window W, the token at position p sees the keys from p - W + 1 on. An output keeps one more, since a
fork runs its last token again, and gives back the blocks before: its tables have NO_BLOCK in their places. Of a long
prompt it has blocks for no more than one step, beside its window.
"""

from collections.abc import Mapping, Sequence

from quire.proto.messages.plans import NO_BLOCK
from quire.proto.messages.requests import ModelFacts


class KVGroups:
    """Sizes and windows, by the number of the group."""

    def __init__(self, facts: ModelFacts, step_tokens: int) -> None:
        """`step_tokens`: tokens that one step may run."""
        self.block_sizes = facts.block_sizes
        self.block_size = facts.block_size
        """Tokens that fill whole blocks in every group: prefixes are shared in such pieces."""
        self.windows = {group: window for group, window in enumerate(facts.windows) if window}
        """Windows of the groups that have one."""
        self.in_turn = sorted(range(len(facts.block_sizes)), key=self.windows.__contains__)
        """Those without a window first: they bound what prompts share."""
        self._step_tokens = step_tokens

    def num_unseen(self, group: int, position: int) -> int:
        """Blocks of a table that no token sees from this position on; 0 without a window."""
        window = self.windows.get(group)
        return 0 if window is None else max(0, position - window + 1) // self.block_sizes[group]

    def lengths(self, num_tokens: int, num_computed: int) -> list[int]:
        """By group, blocks in the tables of an output that enters: with a window, only those of its first step."""
        lengths = [-(-num_tokens // size) for size in self.block_sizes]
        for group in self.windows:
            end = min(num_tokens, num_computed + self._step_tokens)
            lengths[group] = -(-end // self.block_sizes[group])
        return lengths

    def covered(self, listed: Mapping[int, Sequence[bool]], num_tokens: int) -> int:
        """The longest beginning, up to `num_tokens`, before whose end each window finds its blocks.

        `listed`: of each group with a window, which of its blocks are there.
        """
        rows: dict[int, list[int]] = {}
        for group, found in listed.items():
            rows[group] = row = [0]
            for is_there in found:
                row.append(row[-1] + 1 if is_there else 0)
        for length in range(num_tokens, 0, -self.block_size):
            ends = ((group, length // self.block_sizes[group]) for group in rows)
            if all(rows[group][end] >= end - self.num_unseen(group, length) for group, end in ends):
                return length
        return 0

    def without_unseen(self, tables: list[list[int]], num_tokens: int) -> list[list[int]]:
        """The tables of so many tokens without what no token behind them sees."""
        for group in self.windows:
            num_unseen = self.num_unseen(group, num_tokens)
            tables[group][:num_unseen] = [NO_BLOCK] * num_unseen
        return tables
