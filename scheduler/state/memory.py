"""KV memory of the running outputs: reserve, share, extend, trim, publish, release. The only user of pool and index."""

from collections import deque
from typing import NamedTuple

from quire.proto.messages.requests import ModelFacts
from quire.proto.transport.wire import Int32
from quire.scheduler.state.blocks import BlockPool
from quire.scheduler.state.prefix import Entry, Hash, PrefixIndex, sha256
from quire.scheduler.state.sequence import Sequence


class Late(NamedTuple):
    """Full blocks of an ended output, published when their step is acknowledged by every rank."""

    parent: Entry
    tokens: bytes
    blocks: list[int]


class Fence(NamedTuple):
    """`blocks` may be used again when every rank has acknowledged `step`, the newest plan that may touch them."""

    step: int
    blocks: list[int]
    late: Late | None


class Memory:
    """Blocks and prefix cache of one worker group. Tokens are int32; `sent` is the number of the newest plan sent."""

    def __init__(self, facts: ModelFacts, caching: bool, hash_: Hash = sha256) -> None:
        self.block_size = facts.block_size
        self.pool = BlockPool(facts.num_blocks)
        self.index = PrefixIndex(facts.num_blocks, facts.block_size, facts.revision, hash_)
        self.fences: deque[Fence] = deque()
        self.acked = 0
        """Every rank has acknowledged this plan and all before."""
        self._caching = caching and facts.shares_prefixes

    @property
    def available(self) -> int:
        return self.pool.available

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match(self, sequence: Sequence) -> list[Entry]:
        """The longest cached prefix of a waiting output, in blocks; at least one of its tokens stays to run."""
        request = sequence.request
        sequence.root = self.index.root(request.adapter, request.cache_salt) if self._caching else None
        if sequence.root is None or sequence.wants_prompt_logprobs:
            return []
        hits: list[Entry] = []
        parent, width = sequence.root, 4 * self.block_size
        tokens = sequence.tokens.tobytes()
        find = self.index.find
        for start in range(0, (sequence.num_known - 1) // self.block_size * width, width):
            entry = find(parent, tokens[start : start + width])
            if entry is None:
                break
            hits.append(entry)
            parent = entry
        return hits

    def missing(self, num_tokens: int, shared: list[int]) -> int:
        """Available blocks that `reserve` would use up; idle blocks among the shared ones are no longer available."""
        idle = self.pool.idle
        return self.blocks_for(num_tokens) - len(shared) + sum(1 for block in shared if block in idle)

    def reserve(self, sequence: Sequence, num_tokens: int, shared: list[int]) -> None:
        """Give a table for `num_tokens` tokens that begins with the shared full blocks. `missing` must be available."""
        for block in shared:
            self.pool.share(block)
        needed = self.blocks_for(num_tokens) - len(shared)
        sequence.blocks = shared + self.take(needed)

    def take(self, count: int) -> list[int]:
        """New blocks, to be written by one output; so many must be available."""
        take, forget = self.pool.take, self.index.forget
        blocks = [take() for _ in range(count)]
        for block in blocks:
            forget(block)
        return blocks

    def trim(self, sequence: Sequence, num_tokens: int, sent: int) -> None:
        """Give back what is reserved beyond `num_tokens` tokens: speculation was too hopeful."""
        keep = self.blocks_for(num_tokens)
        surplus = sequence.blocks[keep:]
        del sequence.blocks[keep:]
        self._fence(surplus, None, sent)

    def publish(self, sequence: Sequence, history: Int32, num_computed: int) -> int:
        """List the full blocks among the first `num_computed` tokens, all acknowledged. Returns how many are listed."""
        full = num_computed // self.block_size
        late = self._unpublished(sequence, history, full)
        if late is not None:
            sequence.entries.extend(self._list(late))
        return len(sequence.entries)

    def release(self, sequence: Sequence, history: Int32, num_computed: int, sent: int) -> None:
        """Give back the whole table. Full blocks within `num_computed` are published when their fence falls."""
        late = self._unpublished(sequence, history, num_computed // self.block_size)
        self._fence(sequence.blocks, late, sent)
        sequence.forget_memory()

    def condemn(self, sequence: Sequence) -> None:
        """What this output wrote is no number: nothing in its table may be read by another."""
        for block in sequence.blocks:
            self.index.taint(block)
        sequence.root = None

    def acknowledge(self, step: int) -> None:
        """Every rank is done with this plan."""
        self.acked = step
        self._settle()

    def _unpublished(self, sequence: Sequence, history: Int32, full: int) -> Late | None:
        first = len(sequence.entries)
        if sequence.root is None or full <= first:
            return None
        parent = sequence.entries[-1] if first else sequence.root
        tokens = history[first * self.block_size : full * self.block_size].tobytes()
        return Late(parent, tokens, sequence.blocks[first:full])

    def _list(self, late: Late) -> list[Entry]:
        parent, width = late.parent, 4 * self.block_size
        listed: list[Entry] = []
        for number, block in enumerate(late.blocks):
            parent = self.index.publish(parent, late.tokens[number * width : (number + 1) * width], block)
            listed.append(parent)
        return listed

    def _fence(self, blocks: list[int], late: Late | None, sent: int) -> None:
        # Last blocks first: of a cached prefix the tail is then evicted before what it hangs on.
        unread = [block for block in reversed(blocks) if self.pool.drop(block, sent)]
        if unread or late is not None:
            self.fences.append(Fence(sent, unread, late))
            self._settle()

    def _settle(self) -> None:
        fences = self.fences
        while fences and fences[0].step <= self.acked:
            fence = fences.popleft()
            if fence.late is not None:
                self._list(fence.late)
            for block in fence.blocks:
                self.pool.settle(block, fence.step, self.index.entry_of(block) is not None)
