"""The KV memory of the fake worker group: who may read, write and share each block, checked at every touch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from oracle import CELL, extend

from quire.proto.messages.media import Media
from quire.proto.messages.params import SamplingParams

GONE = -1
"""What a table has in place of a block that its window has passed."""


class Broken(AssertionError):
    """The scheduler broke a promise."""


def demand(truth: object, message: str) -> None:
    if not truth:
        raise Broken(message)


Life = tuple[int, int, int]
"""(seed, output index, how many times admitted before)."""


@dataclass(slots=True)
class Slot:
    """One sequence in a worker's tables."""

    params: SamplingParams
    output_index: int
    tenant: bytes
    tokens: list[int]
    num_prompt: int
    computed: int
    tables: list[list[int]]
    """Blocks by KV group."""
    frozen: set[int]
    """Blocks that came with content: read, never written."""
    life: Life
    borrowed: set[int] = field(default_factory=set)
    """Blocks of other requests that it shared before their content was known to be there."""
    chains: list[bytearray] = field(default_factory=list)
    """The cells that `tokens` must find in the table of each KV group."""
    media: tuple[Media, ...] = ()
    bound: dict[int, list[int]] = field(default_factory=dict)
    """Number of a span -> pages of encoder memory."""

    def extend(self, tokens: Iterable[int]) -> None:
        """Append the cells of these tokens, which differ between the groups. Those of the first draw the tokens."""
        for group, chain in enumerate(self.chains):
            extend(chain, self.tenant + b"\0" * group, tokens)

    @property
    def images_end(self) -> int:
        return self.media[-1].span.stop if self.media else 0

    @property
    def name(self) -> tuple[int, int]:
        return self.params.seed, self.output_index


class FakeMemory:
    """Blocks of content. `step` is the plan being run, `acknowledged` the newest step of each rank.

    Any KV group may hold any block, with as many of its cells as it has tokens in one.
    """

    def __init__(
        self, num_blocks: int, block_sizes: Sequence[int], world_size: int, windows: Sequence[int] = ()
    ) -> None:
        """`windows`: of each KV group; 0: it has none; empty: nor has any."""
        self.block_sizes = block_sizes
        self.windows = windows or [0] * len(block_sizes)
        self._width = max(block_sizes)
        """Cells of a block."""
        self.step = 0
        self.acknowledged = [0] * world_size
        """Newest step of each rank that the scheduler knows of."""
        self.poisoned: set[Life] = set()
        """Lives whose content the scheduler knows to be not finite."""
        self.failed: set[int] = set()
        """Blocks of which the scheduler knows that a row with values that are not finite wrote in them."""
        self._cells = bytearray(num_blocks * self._width * CELL)
        self._users = [0] * num_blocks
        """Table entries naming each block."""
        self._touched = [0] * num_blocks
        """Newest step that reads or writes each block."""
        self._written = [0] * num_blocks
        """Newest step that writes each block."""
        self._handed_out = [0] * num_blocks
        """Newest step in which each block was given to a table to write."""
        self._lent = [0] * num_blocks
        """Newest step in which each block got a second reader."""
        self._writer: list[Life | None] = [None] * num_blocks
        self._bad_cells: dict[int, Life] = {}
        """Cell -> the life that wrote values there that are not finite."""

    def num_unseen(self, group: int, position: int) -> int:
        """Blocks of a table that the token at this position, and those behind it, do not see."""
        window = self.windows[group]
        return max(0, position - window + 1) // self.block_sizes[group] if window else 0

    def leave(self, tables: list[list[int]]) -> None:
        """The tables of a slot are gone."""
        for table in tables:
            for block in table:
                if block != GONE:
                    self._users[block] -= 1

    def slide(self, slot: Slot) -> None:
        """The slot goes on: what its last token does not see any more may be given to others."""
        for group, table in enumerate(slot.tables):
            for place in range(self.num_unseen(group, slot.computed - 1)):
                if table[place] != GONE:
                    self.leave([[table[place]]])
                    slot.frozen.discard(table[place])  # it may get the same block anew
                    slot.borrowed.discard(table[place])
                    table[place] = GONE

    def share(self, block: int, size: int, is_fork: bool) -> bool:
        """A table that begins with content names this block. True: the content may still be under way.

        A fork may share whatever its living parent has.
        """
        self._users[block] += 1
        if self._users[block] == 2:
            self._lent[block] = self.step
        if is_fork:
            return False
        demand(block not in self.failed, f"block {block} is shared, but a row wrote no numbers there")
        for cell in range(block * self._width, block * self._width + size) if self.poisoned else ():
            writer = self._bad_cells.get(cell)
            demand(writer not in self.poisoned, f"block {block} is shared, but {writer} wrote no numbers there")
        return max(self._handed_out[block], self._written[block]) > min(self.acknowledged)

    def check_borrowed(self, slot: Slot) -> None:
        """The slot runs a row: nothing that it borrowed is known to be no numbers."""
        for block in slot.borrowed:
            writer = self._writer[block]
            is_bad = block in self.failed or writer in self.poisoned
            demand(not is_bad, f"{slot.name} goes on with block {block}, where {writer} wrote no numbers")

    def written_in_this_step(self, slot: Slot) -> list[int]:
        """Blocks of the slot that its row has written."""
        return [
            block
            for table in slot.tables
            for block in table
            if block != GONE and self._written[block] == self.step and self._writer[block] == slot.life
        ]

    def is_named(self, block: int) -> bool:
        """A table names this block."""
        return 0 <= block < len(self._users) and self._users[block] > 0

    def hand_out(self, block: int) -> None:
        """A table gets this block to write."""
        demand(0 <= block < len(self._users), "a block outside the pool is handed out")
        if self._users[block]:
            raise Broken(f"block {block} is handed out while a table names it")
        if self._touched[block] > min(self.acknowledged):
            raise Broken(f"block {block} is handed out while step {self._touched[block]} may touch it")
        self._users[block] = 1
        self._handed_out[block], self._writer[block] = self.step, None
        self.failed.discard(block)
        for cell in range(block * self._width, (block + 1) * self._width) if self._bad_cells else ():
            self._bad_cells.pop(cell, None)

    def copy(self, source: int, target: int) -> None:
        """The target, just handed out, gets the source's content."""
        size = self._width
        demand(self._users[target] == 1, f"copy to block {target}, named by {self._users[target]} tables")
        at, to = source * size * CELL, target * size * CELL
        self._cells[to : to + size * CELL] = self._cells[at : at + size * CELL]
        for offset in range(size):
            writer = self._bad_cells.get(source * size + offset)
            self._bad_cells.pop(target * size + offset, None)
            if writer is not None:
                self._bad_cells[target * size + offset] = writer
        self._touched[source] = self._touched[target] = self._written[target] = self.step

    def read(self, slot: Slot, start: int) -> bool:
        """Compare everything the row attends to with what its tokens must have left there; False if not finite."""
        return all(self._read_group(slot, start, group) for group in range(len(slot.tables)))

    def _read_group(self, slot: Slot, start: int, group: int) -> bool:
        table, chain, size = slot.tables[group], slot.chains[group], self.block_sizes[group]
        stride, unseen, window = self._width * CELL, self.num_unseen(group, start), self.windows[group]
        seen = table[unseen : -(-start // size)]
        demand(GONE not in seen, f"{slot.name} at {start} lacks blocks of group {group} that it sees: {table}")
        cells = b"".join([self._cells[b * stride : b * stride + size * CELL] for b in seen])
        begin = unseen * size
        first = max(0, start - window + 1) if window else 0
        if cells[(first - begin) * CELL : (start - begin) * CELL] == chain[first * CELL : start * CELL]:
            return True
        for position in range(first, start):
            at, own = (position - begin) * CELL, position * CELL
            if cells[at : at + CELL] == chain[own : own + CELL]:
                continue
            block = table[position // size]
            demand(
                block * self._width + position % size in self._bad_cells,
                f"{slot.name} reads wrong content at position {position} (block {block}, step {self.step})",
            )
        return False

    def write(self, slot: Slot, start: int, end: int, finite: bool, of_drafts: bool = False) -> None:
        """A row of positions start..end-1 leaves its cells. `of_drafts`: those of tokens that were refused."""
        for group, chain in enumerate(slot.chains):
            content = chain[start * CELL : end * CELL]
            if of_drafts or not finite:
                content = (b"\xdd" if of_drafts else b"\xff") * ((end - start) * CELL)
            self._write_group(slot, start, content, finite, group)

    def _write_group(self, slot: Slot, start: int, content: bytes, finite: bool, group: int) -> None:
        table, size = slot.tables[group], self.block_sizes[group]
        end = start + len(content) // CELL
        if end > len(table) * size:
            raise Broken(f"{slot.name} writes up to {end}, its table has {len(table)} blocks")
        for block in table[self.num_unseen(group, start) : -(-end // size)]:
            self._touched[block] = self.step
        for index in range(start // size, -(-end // size)):
            block = table[index]
            if block in slot.frozen:
                raise Broken(f"{slot.name} writes block {block}, which it was given to read")
            if self._users[block] != 1 and self._lent[block] != self.step:
                raise Broken(f"{slot.name} writes block {block}, shared by {self._users[block]}")
            low, high = max(start, index * size), min(end, (index + 1) * size)
            at = block * self._width + low - index * size
            self._cells[at * CELL : (at + high - low) * CELL] = content[(low - start) * CELL : (high - start) * CELL]
            self._written[block], self._writer[block] = self.step, slot.life
            if self._bad_cells or not finite:
                for cell in range(at, at + high - low):
                    self._bad_cells.pop(cell, None)
                    if not finite:
                        self._bad_cells[cell] = slot.life
