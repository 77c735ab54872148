"""The KV memory of the running outputs: reserve, share, extend, trim, publish, release. Only it uses pool and index."""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import NamedTuple

from quire.proto.messages.requests import ModelFacts
from quire.proto.prefix_key import block_contents, prefix_key
from quire.proto.transport.wire import Int32
from quire.scheduler.state.blocks import BlockPool
from quire.scheduler.state.prefix import KeyOf, PrefixEntry, PrefixIndex
from quire.scheduler.state.sequence import Sequence

PUBLISH_BATCH = 4
"""Generated blocks are published in batches of this size, the rest at the end: nobody else can know them earlier."""
NEVER = 1 << 62
"""Number of tokens that no output has."""
_NOTHING: dict[int, list[int]] = {}


class UnpublishedBlocks(NamedTuple):
    """Full blocks of one group that are not listed yet: those of an ended output wait for its last step."""

    parent: PrefixEntry
    contents: Iterator[bytes]
    blocks: list[int]


class Fence(NamedTuple):
    """`blocks` may be used again when every rank has acknowledged `step`, the newest plan that may touch them."""

    step: int
    blocks: list[int]
    unpublished: list[UnpublishedBlocks]


class Memory:
    """The blocks and the prefix cache of one worker group. `sent` is the number of the newest plan sent.

    An output has a table for each KV group of the model; the blocks of all groups come from one pool.
    """

    def __init__(self, facts: ModelFacts, caching: bool, key_of: KeyOf = prefix_key) -> None:
        self.block_sizes = facts.block_sizes
        self.block_size = facts.block_size
        """Tokens that fill whole blocks in every group: prefixes are shared in such pieces."""
        self._groups = range(len(facts.block_sizes))
        self._widest = facts.block_sizes.index(facts.block_size)
        self.pool = BlockPool(facts.num_blocks)
        self.index = PrefixIndex(facts.num_blocks, facts.block_sizes, facts.revision, key_of)
        self.fences: deque[Fence] = deque()
        self.planned: dict[int, dict[int, list[int]]] = {}
        """Plan -> slot -> blocks that its row fills with known tokens; until every rank has acknowledged the plan."""
        self.acked = 0
        """Number of the newest plan that every rank has acknowledged."""
        self._caching = caching and facts.shares_prefixes

    @property
    def available(self) -> int:
        return self.pool.available

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks of all groups that one output of so many tokens needs."""
        return sum(-(-num_tokens // size) for size in self.block_sizes)

    def match(self, sequence: Sequence) -> tuple[int, list[list[PrefixEntry]]]:
        """The longest prefix of a waiting output that every group has cached, in tokens, and its entries by group.

        At least one of its tokens stays to run. Blocks that a plan has still to write are found, too: in every layer a
        step stores all keys before any row attends, and plans run in order.
        """
        request, sizes = sequence.request, self.block_sizes
        if self._caching:
            sequence.roots = [self.index.root(group, request.adapter, request.cache_salt) for group in self._groups]
        if not sequence.roots or sequence.wants_prompt_logprobs:
            return 0, [[] for _ in sizes]
        hits: list[list[PrefixEntry]] = []
        num_tokens = (sequence.num_known - 1) // self.block_size * self.block_size
        for root, size in zip(sequence.roots, sizes, strict=True):
            tokens = sequence.tokens[:num_tokens].tobytes()
            contents = block_contents(tokens, size, 0, request.placeholders)
            hits.append(self._cached(root, contents, only_proven=sequence.was_misled))
            num_tokens = len(hits[-1]) * size // self.block_size * self.block_size
        for found, size in zip(hits, sizes, strict=True):
            del found[num_tokens // size :]
        return num_tokens, hits

    def _cached(self, root: PrefixEntry, contents: Iterable[bytes], only_proven: bool) -> list[PrefixEntry]:
        """The listed entries of the longest prefix of these blocks."""
        found: list[PrefixEntry] = []
        parent, find = root, self.index.find
        for content in contents:
            entry = find(parent, content)
            if entry is None or (only_proven and entry.step):
                break
            found.append(entry)
            parent = entry
        return found

    def missing_by_group(self, sequence: Sequence, num_tokens: int) -> list[int]:
        """By group, blocks that a running output needs beyond its tables to hold so many tokens."""
        tables = zip(sequence.tables, self.block_sizes, strict=True)
        return [max(0, -(-num_tokens // size) - len(table)) for table, size in tables]

    def missing(self, num_tokens: int, shared: list[list[int]]) -> int:
        """Number of available blocks that `reserve` would use up, idle ones among the shared blocks included."""
        idle = self.pool.idle
        num_new = self.blocks_for(num_tokens) - sum(len(blocks) for blocks in shared)
        return num_new + sum(1 for blocks in shared for block in blocks if block in idle)

    def reserve(self, sequence: Sequence, num_tokens: int, shared: list[list[int]]) -> None:
        """Give the output tables for `num_tokens` tokens that begin with the `shared` full blocks of each group.

        As many blocks as `missing` says must be available.
        """
        for blocks in shared:
            for block in blocks:
                self.pool.share(block)
        sequence.tables = [
            blocks + self.take(-(-num_tokens // size) - len(blocks))
            for blocks, size in zip(shared, self.block_sizes, strict=True)
        ]

    def take(self, count: int) -> list[int]:
        """New blocks for one output to write; `count` must be available."""
        blocks = self.pool.take(count)
        self.index.remove(blocks)
        return blocks

    def trim(self, sequence: Sequence, num_tokens: int, sent: int) -> None:
        """Give back blocks beyond `num_tokens` tokens: they were reserved for speculated tokens that were refused."""
        surplus: list[list[int]] = []
        for table, size in zip(sequence.tables, self.block_sizes, strict=True):
            keep = -(-num_tokens // size)
            surplus.append(table[keep:])
            del table[keep:]
        self._fence(surplus, [], sent)

    def plan(self, sequence: Sequence, history: Int32, num_tokens: int, step: int) -> None:
        """List the full blocks among the first `num_tokens` known tokens, which the plan `step` will have written.

        Whatever runs in that plan or later may share them.
        """
        for group in self._groups:
            unpublished = self._unpublished(sequence, group, history, num_tokens)
            if unpublished is not None:
                sequence.entries[group] += self.index.publish(*unpublished, step)
                self.planned.setdefault(step, {}).setdefault(sequence.slot, []).extend(unpublished.blocks)

    def num_planned(self, sequence: Sequence) -> int:
        """Tokens of a running output whose full blocks the plans sent, and the one under construction, have written."""
        return len(sequence.entries[self._widest]) * self.block_size

    def num_under_way(self, sequence: Sequence) -> int:
        """Tokens of a running output's listed blocks that a plan has still to write."""
        return sum(1 for entry in sequence.entries[self._widest] if entry.step) * self.block_size

    def publish(self, sequence: Sequence, history: Int32, num_computed: int) -> None:
        """List the full blocks among the first `num_computed` tokens, all acknowledged."""
        for group in self._groups:
            unpublished = self._unpublished(sequence, group, history, num_computed)
            if unpublished is not None:
                sequence.entries[group] += self.index.publish(*unpublished)

    def publish_at(self, sequence: Sequence) -> int:
        """Acknowledged tokens with which `publish` is due next: a block more of the prompt, a batch of later ones."""
        if not sequence.roots:
            return NEVER
        listed = len(sequence.entries[self._widest])
        is_prompt = listed < sequence.request.num_prompt // self.block_size
        return (listed + (1 if is_prompt else PUBLISH_BATCH)) * self.block_size

    def release(self, sequence: Sequence, history: Int32, num_computed: int, sent: int) -> None:
        """Give back the tables. Full blocks within `num_computed` are published when their fence falls."""
        by_group = [self._unpublished(sequence, group, history, num_computed) for group in self._groups]
        unpublished = [blocks for blocks in by_group if blocks is not None]
        self._fence(sequence.tables, unpublished, sent)
        sequence.clear_memory()

    def poison(self, sequence: Sequence) -> None:
        """Keep every block of this output out of the cache: what it wrote is not finite."""
        for table in sequence.tables:
            for block in table:
                self.index.poison(block)
        sequence.roots = []

    def written_by(self, sequence: Sequence) -> list[int]:
        """The blocks of a running output that it was not given with content."""
        tables = zip(sequence.tables, self.block_sizes, strict=True)
        return [block for table, size in tables for block in table[sequence.num_shared // size :]]

    def fail(self, step: int, slot: int) -> list[int]:
        """Keep out of the cache what the row of this slot was to fill in this plan: its values are not finite."""
        blocks = self.planned.get(step, {}).get(slot, [])
        for block in blocks:
            self.index.poison(block)
        return blocks

    def acknowledge(self, step: int) -> None:
        """Every rank is done with the plan of this number: what it was to write is proven, and its fences fall."""
        for blocks in self.planned.pop(step, _NOTHING).values():
            self.index.prove(blocks)
        self.acked = step
        self._settle()

    def _unpublished(
        self, sequence: Sequence, group: int, history: Int32, num_computed: int
    ) -> UnpublishedBlocks | None:
        """The full blocks of a group among `num_computed` tokens; None without any, or where nothing may be cached."""
        if not sequence.roots:
            return None
        size, entries = self.block_sizes[group], sequence.entries[group]
        first, full = len(entries), num_computed // size
        if full <= first:
            return None
        parent = entries[-1] if first else sequence.roots[group]
        tokens = history[first * size : full * size].tobytes()
        contents = block_contents(tokens, size, first, sequence.request.placeholders)
        return UnpublishedBlocks(parent, contents, sequence.tables[group][first:full])

    def _fence(self, tables: list[list[int]], unpublished: list[UnpublishedBlocks], sent: int) -> None:
        unread = self.pool.drop(_tails_first(tables), sent)
        if unread or unpublished:
            self.fences.append(Fence(sent, unread, unpublished))
            self._settle()

    def _settle(self) -> None:
        fences = self.fences
        while fences and fences[0].step <= self.acked:
            fence = fences.popleft()
            for unpublished in fence.unpublished:
                self.index.publish(*unpublished)
            for block in fence.blocks:
                self.pool.settle(block, fence.step, self.index.entry_of(block) is not None)


def _tails_first(tables: list[list[int]]) -> Iterable[int]:
    """All blocks, those of the last tokens first: the tail of a cached prefix is then evicted before its beginning."""
    if len(tables) == 1:
        return reversed(tables[0])
    return [block for row in zip_longest(*map(reversed, tables)) for block in row if block is not None]
