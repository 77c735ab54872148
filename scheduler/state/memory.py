"""The KV memory of the running outputs: reserve, share, extend, trim, publish, release. Only it uses pool and index."""

from collections import deque
from typing import NamedTuple

from quire.proto.messages.requests import ModelFacts
from quire.proto.prefix_key import block_contents, prefix_key
from quire.proto.transport.wire import Int32
from quire.scheduler.state.blocks import BlockPool
from quire.scheduler.state.prefix import KeyOf, PrefixEntry, PrefixIndex
from quire.scheduler.state.sequence import Sequence


class UnpublishedBlocks(NamedTuple):
    """Full blocks of an ended output, published when their step is acknowledged by every rank."""

    parent: PrefixEntry
    contents: list[bytes]
    blocks: list[int]


class Fence(NamedTuple):
    """`blocks` may be used again when every rank has acknowledged `step`, the newest plan that may touch them."""

    step: int
    blocks: list[int]
    unpublished: UnpublishedBlocks | None


class Memory:
    """The blocks and the prefix cache of one worker group. `sent` is the number of the newest plan sent."""

    def __init__(self, facts: ModelFacts, caching: bool, key_of: KeyOf = prefix_key) -> None:
        self.block_size = facts.block_size
        self.pool = BlockPool(facts.num_blocks)
        self.index = PrefixIndex(facts.num_blocks, facts.block_size, facts.revision, key_of)
        self.fences: deque[Fence] = deque()
        self.acked = 0
        """Number of the newest plan that every rank has acknowledged."""
        self._caching = caching and facts.shares_prefixes

    @property
    def available(self) -> int:
        return self.pool.available

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match(self, sequence: Sequence) -> list[PrefixEntry]:
        """The entries of a waiting output's longest cached prefix; at least one of its tokens stays to run."""
        request = sequence.request
        sequence.root = self.index.root(request.adapter, request.cache_salt) if self._caching else None
        if sequence.root is None or sequence.wants_prompt_logprobs:
            return []
        hits: list[PrefixEntry] = []
        parent, find = sequence.root, self.index.find
        tokens = sequence.tokens[: sequence.num_known - 1].tobytes()
        for content in block_contents(tokens, self.block_size, 0, request.placeholders):
            entry = find(parent, content)
            if entry is None:
                break
            hits.append(entry)
            parent = entry
        return hits

    def missing(self, num_tokens: int, shared: list[int]) -> int:
        """Number of available blocks that `reserve` would use up, idle ones among the shared blocks included."""
        idle = self.pool.idle
        return self.blocks_for(num_tokens) - len(shared) + sum(1 for block in shared if block in idle)

    def reserve(self, sequence: Sequence, num_tokens: int, shared: list[int]) -> None:
        """Give the output a table for `num_tokens` tokens that begins with the `shared` full blocks.

        As many blocks as `missing` says must be available.
        """
        for block in shared:
            self.pool.share(block)
        needed = self.blocks_for(num_tokens) - len(shared)
        sequence.blocks = shared + self.take(needed)

    def take(self, count: int) -> list[int]:
        """New blocks for one output to write; `count` must be available."""
        take, remove = self.pool.take, self.index.remove
        blocks = [take() for _ in range(count)]
        for block in blocks:
            remove(block)
        return blocks

    def trim(self, sequence: Sequence, num_tokens: int, sent: int) -> None:
        """Give back blocks beyond `num_tokens` tokens: they were reserved for speculated tokens that were refused."""
        keep = self.blocks_for(num_tokens)
        surplus = sequence.blocks[keep:]
        del sequence.blocks[keep:]
        self._fence(surplus, None, sent)

    def publish(self, sequence: Sequence, history: Int32, num_computed: int) -> int:
        """List the full blocks among the first `num_computed` tokens, all acknowledged. Returns how many are listed."""
        full = num_computed // self.block_size
        unpublished = self._unpublished(sequence, history, full)
        if unpublished is not None:
            sequence.entries.extend(self._list(unpublished))
        return len(sequence.entries)

    def release(self, sequence: Sequence, history: Int32, num_computed: int, sent: int) -> None:
        """Give back the whole table. Full blocks within `num_computed` are published when their fence falls."""
        unpublished = self._unpublished(sequence, history, num_computed // self.block_size)
        self._fence(sequence.blocks, unpublished, sent)
        sequence.clear_memory()

    def poison(self, sequence: Sequence) -> None:
        """Keep every block of this output out of the cache: what it wrote is not finite."""
        for block in sequence.blocks:
            self.index.poison(block)
        sequence.root = None

    def acknowledge(self, step: int) -> None:
        """Every rank is done with the plan of this number."""
        self.acked = step
        self._settle()

    def _unpublished(self, sequence: Sequence, history: Int32, full: int) -> UnpublishedBlocks | None:
        first = len(sequence.entries)
        if sequence.root is None or full <= first:
            return None
        parent = sequence.entries[-1] if first else sequence.root
        tokens = history[first * self.block_size : full * self.block_size].tobytes()
        contents = block_contents(tokens, self.block_size, first, sequence.request.placeholders)
        return UnpublishedBlocks(parent, list(contents), sequence.blocks[first:full])

    def _list(self, unpublished: UnpublishedBlocks) -> list[PrefixEntry]:
        parent = unpublished.parent
        listed: list[PrefixEntry] = []
        for content, block in zip(unpublished.contents, unpublished.blocks, strict=True):
            parent = self.index.publish(parent, content, block)
            listed.append(parent)
        return listed

    def _fence(self, blocks: list[int], unpublished: UnpublishedBlocks | None, sent: int) -> None:
        # Last blocks first: the tail of a cached prefix is then evicted before its beginning.
        unread = [block for block in reversed(blocks) if self.pool.drop(block, sent)]
        if unread or unpublished is not None:
            self.fences.append(Fence(sent, unread, unpublished))
            self._settle()

    def _settle(self) -> None:
        fences = self.fences
        while fences and fences[0].step <= self.acked:
            fence = fences.popleft()
            if fence.unpublished is not None:
                self._list(fence.unpublished)
            for block in fence.blocks:
                self.pool.settle(block, fence.step, self.index.entry_of(block) is not None)
