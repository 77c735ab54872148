"""The pool of KV blocks: reference counts, the free list, and what is cached without a reader. All O(1) per block."""

from collections import OrderedDict, deque


class BlockPool:
    """Every block is in exactly one place: free, idle (cached, no reader), referenced, or fenced.

    A fenced block has lost its last reader while a step that may touch it was in flight; whoever fenced it calls
    `settle` when that step is over.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.refs = [0] * num_blocks
        self.free = deque(range(num_blocks))
        self.idle: OrderedDict[int, None] = OrderedDict()
        """Least recently used first."""
        self.num_fenced = 0

    @property
    def available(self) -> int:
        return len(self.free) + len(self.idle)

    @property
    def num_referenced(self) -> int:
        return self.num_blocks - self.available - self.num_fenced

    def take(self) -> int:
        """A block for one new reader: free if there is one, else the idle one that was used longest ago."""
        block = self.free.popleft() if self.free else self.idle.popitem(last=False)[0]
        self.refs[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more reader of a referenced or idle block."""
        if self.refs[block] == 0:
            del self.idle[block]
        self.refs[block] += 1

    def drop(self, block: int) -> bool:
        """One reader less. True when it was the last: the block is now fenced."""
        self.refs[block] -= 1
        if self.refs[block]:
            return False
        self.num_fenced += 1
        return True

    def settle(self, block: int, cached: bool) -> None:
        """A fenced block may be used again: as it is if cached, else as a free one."""
        self.num_fenced -= 1
        if cached:
            self.idle[block] = None
        else:
            self.free.append(block)
