"""The pool of KV blocks: reference counts, free list, cached blocks without a reader. All is O(1) per block."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt


class IdleList:
    """Blocks without a reader whose content is cached, least recently used first.

    A linked list in two arrays: unlike a dict it never stops to rehash. Index `num_blocks` is both ends.
    """

    def __init__(self, num_blocks: int) -> None:
        self._end = num_blocks
        self._next = [-1] * num_blocks + [num_blocks]
        """Successor of each block; -1: not in the list."""
        self._before = [-1] * num_blocks + [num_blocks]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, block: int) -> bool:
        return self._next[block] >= 0

    def __iter__(self) -> Iterator[int]:
        block = self._next[self._end]
        while block != self._end:
            yield block
            block = self._next[block]

    def mask(self, num_blocks: int) -> npt.NDArray[np.bool_]:
        """Membership of the first `num_blocks` blocks: bool [num_blocks]."""
        return np.fromiter(self._next, np.int64, num_blocks) >= 0

    def is_linked(self, block: int) -> bool:
        """True if the successor of a block of the list has it before itself."""
        return self._before[self._next[block]] == block

    def extend(self, blocks: Sequence[int]) -> None:
        """Put in blocks as used right now, one after the other."""
        following, before, end = self._next, self._before, self._end
        last = before[end]
        for block in blocks:
            following[last], before[block] = block, last
            last = block
        following[last], before[end] = end, last
        self._count += len(blocks)

    def prepend(self, block: int) -> None:
        """Put in a block as if it had been used longest ago."""
        first, end = self._next[self._end], self._end
        self._before[first] = self._next[end] = block
        self._before[block], self._next[block] = end, first
        self._count += 1

    def remove(self, block: int) -> None:
        before, after = self._before[block], self._next[block]
        self._next[before], self._before[after] = after, before
        self._next[block] = -1
        self._count -= 1

    def take(self, count: int) -> list[int]:
        """Take out the blocks that were used longest ago; there must be so many."""
        following, end = self._next, self._end
        blocks: list[int] = []
        block = following[end]
        for _ in range(count):
            blocks.append(block)
            block = following[block]
        following[end], self._before[block] = block, end
        for block in blocks:
            following[block] = -1
        self._count -= count
        return blocks


class BlockPool:
    """All blocks, each in exactly one place: free, idle (cached, no reader), referenced, or fenced.

    A fenced block has lost its last reader while a step that may touch it was in flight; whoever fenced it calls
    `settle` when that step is over. Until then nobody may write it, but a cached one may gain a reader.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.refs = [0] * num_blocks
        self.free = deque(range(num_blocks))
        self.idle = IdleList(num_blocks)
        self.fenced: dict[int, int] = {}
        """Block -> the step that must be over before it is used again."""

    @property
    def available(self) -> int:
        return len(self.free) + len(self.idle)

    @property
    def num_referenced(self) -> int:
        return self.num_blocks - self.available - len(self.fenced)

    def readers(self, num_blocks: int) -> npt.NDArray[np.int64]:
        """Readers of each of the first `num_blocks` blocks: int64 [num_blocks]."""
        return np.fromiter(self.refs, np.int64, num_blocks)

    def take(self, count: int) -> list[int]:
        """Blocks for one new reader each: free ones, then the idle ones that were used longest ago."""
        free, refs = self.free, self.refs
        num_free = min(count, len(free))
        blocks = [free.popleft() for _ in range(num_free)]
        if num_free < count:
            blocks += self.idle.take(count - num_free)
        for block in blocks:
            refs[block] = 1
        return blocks

    def share(self, block: int) -> None:
        """Add a reader to a cached block, wherever it is."""
        if self.refs[block] == 0 and self.fenced.pop(block, None) is None:
            self.idle.remove(block)
        self.refs[block] += 1

    def drop(self, blocks: Iterable[int], step: int) -> list[int]:
        """Take a reader away from each. Returns those that lost their last: they are fenced until `step` is over."""
        refs, unread = self.refs, []
        for block in blocks:
            refs[block] -= 1
            if not refs[block]:
                unread.append(block)
        self.fenced.update(dict.fromkeys(unread, step))
        return unread

    def uncache(self, block: int) -> None:
        """The block is not cached any more: without a reader it is free."""
        if block in self.idle:
            self.idle.remove(block)
            self.free.append(block)

    def settle(
        self, blocks: Iterable[int], step: int, contents: Sequence[object | None], is_spent: bool = False
    ) -> None:
        """`step` is over: the blocks may be used again, as they are where `contents`, by block, has some, else as free.

        Nothing happens to a block that has found a reader since, or was fenced anew. `is_spent`: those that are cached
        are the first to be written anew.
        """
        fenced, free, cached = self.fenced, self.free, []
        for block in blocks:
            if fenced.get(block) != step:
                continue
            del fenced[block]
            if contents[block] is None:
                free.append(block)
            else:
                cached.append(block)
        if not is_spent:
            self.idle.extend(cached)
            return
        for block in cached:
            self.idle.prepend(block)
