"""The KV memory of the running outputs: reserve, share, extend, trim, publish, release. Only it uses pool and index."""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, takewhile, zip_longest
from typing import NamedTuple

from quire.proto.messages.plans import NO_BLOCK
from quire.proto.messages.requests import ModelFacts
from quire.proto.prefix_key import block_contents, prefix_key
from quire.proto.transport.wire import Int32
from quire.scheduler.kv_groups import KVGroups
from quire.scheduler.state.blocks import BlockPool
from quire.scheduler.state.prefix import KeyOf, PrefixEntry, PrefixIndex
from quire.scheduler.state.sequence import Sequence

PUBLISH_BATCH = 16
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
    is_spent: bool = False
    """They hold what no prompt is likely to share."""


class Memory:
    """The blocks and the prefix cache of one worker group. `sent` is the number of the newest plan sent.

    An output has a table for each KV group of the model; the blocks of all groups come from one pool.
    """

    def __init__(self, facts: ModelFacts, caching: bool, step_tokens: int, key_of: KeyOf = prefix_key) -> None:
        """`step_tokens`: tokens that one step may run."""
        self.blocks_for = facts.blocks_for
        self.groups = groups = KVGroups(facts, step_tokens)
        self.block_sizes, self.block_size, self.windows = groups.block_sizes, groups.block_size, groups.windows
        self._groups = range(len(facts.block_sizes))
        self._widest = facts.block_sizes.index(facts.block_size)
        self.pool = BlockPool(facts.num_blocks)
        self.index = PrefixIndex(facts.num_blocks, facts.block_sizes, facts.revision, key_of)
        self.fences: deque[Fence] = deque()
        self.planned: dict[int, dict[int, list[int]]] = {}
        """Plan -> slot -> blocks that its row fills with known tokens; until every rank has acknowledged the plan."""
        self._unlisted: list[tuple[Sequence, Int32, int, int]] = []
        """Arguments of `plan` that `list_planned` has still to follow."""
        self.acked = 0
        """Number of the newest plan that every rank has acknowledged."""
        self._caching = caching and facts.shares_prefixes

    @property
    def available(self) -> int:
        return self.pool.available

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
        hits: list[list[PrefixEntry]] = [[] for _ in sizes]
        num_tokens = (sequence.num_known - 1) // self.block_size * self.block_size
        only_proven = sequence.was_misled
        listed: dict[int, list[bool]] = {}
        for group in self.groups.in_turn:
            size = sizes[group]
            contents = block_contents(sequence.tokens[:num_tokens].tobytes(), size, 0, request.placeholders)
            entries = self.index.chain(sequence.roots[group], contents)
            if group in self.windows:
                hits[group] = list(entries)
                listed[group] = [_is_listed(entry, only_proven) for entry in hits[group]]
                continue
            hits[group] = list(takewhile(lambda entry: _is_listed(entry, only_proven), entries))
            num_tokens = len(hits[group]) * size // self.block_size * self.block_size
        if self.windows:
            num_tokens = self.groups.covered(listed, num_tokens)
        for found, size in zip(hits, sizes, strict=True):
            del found[num_tokens // size :]
        return num_tokens, hits

    def shared(self, hits: list[list[PrefixEntry]], num_tokens: int) -> list[list[int]]:
        """The blocks with which the tables of an output begin that finds so many tokens, its `hits`, cached."""
        return self.groups.without_unseen([[entry.block for entry in found] for found in hits], num_tokens)

    def missing_by_group(self, sequence: Sequence, num_tokens: int) -> list[int]:
        """By group, blocks that a running output needs beyond its tables to hold so many tokens."""
        tables = zip(sequence.tables, self.block_sizes, strict=True)
        return [max(0, -(-num_tokens // size) - len(table)) for table, size in tables]

    def reach(self, sequence: Sequence, num_tokens: int, num_spare: int) -> int:
        """So many tokens of a running output, or as many as its tables hold with that many more blocks."""
        step = min(self.block_sizes)
        while sum(self.missing_by_group(sequence, num_tokens)) > max(0, num_spare):
            num_tokens = (num_tokens - 1) // step * step
        return num_tokens

    def may_fork(self, parent: Sequence) -> bool:
        """The output has still what its last prompt token sees."""
        last = parent.request.num_prompt - 1
        return all(parent.num_behind[group] <= self.groups.num_unseen(group, last) for group in self.windows)

    def missing(self, num_tokens: int, num_computed: int, shared: list[list[int]]) -> int:
        """Number of available blocks that `reserve` would use up, idle ones among the shared blocks included."""
        idle = self.pool.idle
        num_new = sum(self.groups.lengths(num_tokens, num_computed)) - sum(len(blocks) for blocks in shared)
        return num_new + sum(1 for blocks in shared for block in blocks if block >= 0 and block in idle)

    def reserve(self, sequence: Sequence, num_tokens: int, num_computed: int, shared: list[list[int]]) -> None:
        """Give the output tables for `num_tokens` tokens that begin with the `shared` full blocks of each group.

        Of a group with a window they hold the tokens of its first step, behind those computed. As many blocks as
        `missing` says must be available.
        """
        sequence.num_behind = [0] * len(shared)
        for group in self.windows:
            sequence.num_behind[group] = shared[group].count(NO_BLOCK)
        for blocks, behind in zip(shared, sequence.num_behind, strict=True):
            for block in blocks[behind:] if behind else blocks:
                self.pool.share(block)
        lengths = self.groups.lengths(num_tokens, num_computed)
        sequence.tables = [
            blocks + self.take(length - len(blocks)) for blocks, length in zip(shared, lengths, strict=True)
        ]

    def let_go(self, passed: Iterable[tuple[Sequence, int, int]], sent: int) -> None:
        """Give back the blocks behind windows: of each (output, group, number of blocks from the table's first on).

        Those are the first to be written anew, but for what prompts may share: the window before the last full block
        of the prompt, and what was shared already.
        """
        spent: list[int] = []
        kept: list[int] = []
        for sequence, group, num_behind in passed:
            table, size, request = sequence.tables[group], self.block_sizes[group], sequence.request
            num_shared = sequence.num_shared // size
            last = (request.num_prompt - 1) // self.block_size * self.block_size
            begin, end = self.groups.num_unseen(group, last), request.num_prompt // size
            for place in range(sequence.num_behind[group], num_behind):
                (kept if place < num_shared or begin <= place < end else spent).append(table[place])
                table[place] = NO_BLOCK
            sequence.num_behind[group] = num_behind
        self._fence(kept, [], sent)
        self._fence(spent, [], sent, is_spent=True)

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
        self._fence(_tails_first(surplus), [], sent)

    def plan(self, sequence: Sequence, history: Int32, num_tokens: int, step: int) -> None:
        """The plan `step` will have written the first `num_tokens` known tokens: whatever runs in it or later may share
        their full blocks. `list_planned` lists these.
        """
        self._unlisted.append((sequence, history, num_tokens, step))

    def list_planned(self) -> None:
        """List what `plan` was told of: before somebody looks for a prefix, or the next event; no plan waits for it."""
        for sequence, history, num_tokens, step in self._unlisted:
            for group in self._groups:
                unpublished = self._unpublished(sequence, group, history, num_tokens)
                if unpublished is not None:
                    sequence.entries[group] += self.index.publish(*unpublished, step)
                    self.planned.setdefault(step, {}).setdefault(sequence.slot, []).extend(unpublished.blocks)
        self._unlisted.clear()

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
        self._fence(_tails_first(sequence.held_blocks), unpublished, sent)
        sequence.clear_memory()

    def poison(self, sequence: Sequence) -> None:
        """Keep every block of this output out of the cache: what it wrote is not finite."""
        for block in chain(self.written_by(sequence), *sequence.held_blocks):
            self.index.poison(block)
            self.pool.uncache(block)
        sequence.roots = []

    def written_by(self, sequence: Sequence) -> list[int]:
        """The blocks of a running output that it was not given with content, and those like them behind windows."""
        tables = zip(sequence.tables, self.block_sizes, strict=True)
        written = [block for table, size in tables for block in table[sequence.num_shared // size :]]
        if not self.windows:
            return written
        for group in self.windows:
            first, behind = sequence.num_shared // self.block_sizes[group], sequence.num_behind[group]
            written += [entry.block for entry in sequence.entries[group][first:behind]]
        return [block for block in written if block != NO_BLOCK]

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

    def _fence(
        self, blocks: Iterable[int], unpublished: list[UnpublishedBlocks], sent: int, is_spent: bool = False
    ) -> None:
        unread = self.pool.drop(blocks, sent)
        if unread or unpublished:
            self.fences.append(Fence(sent, unread, unpublished, is_spent))
            self._settle()

    def _settle(self) -> None:
        fences = self.fences
        while fences and fences[0].step <= self.acked:
            fence = fences.popleft()
            for unpublished in fence.unpublished:
                self.index.publish(*unpublished)
            self.pool.settle(fence.blocks, fence.step, self.index.by_block, fence.is_spent)


def _is_listed(entry: PrefixEntry, only_proven: bool) -> bool:
    return entry.block != NO_BLOCK and not (only_proven and entry.step)


def _tails_first(tables: list[list[int]]) -> Iterable[int]:
    """All blocks, those of the last tokens first: the tail of a cached prefix is then evicted before its beginning."""
    if len(tables) == 1:
        return reversed(tables[0])
    return [block for row in zip_longest(*map(reversed, tables)) for block in row if block is not None]
