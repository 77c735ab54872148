"""The KV memory of the fake worker group: who may read, write and share each block, checked at every touch."""

from dataclasses import dataclass, field

from oracle import CELL

from quire.proto.messages.params import SamplingParams


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
    table: list[int]
    frozen: set[int]
    """Blocks that came with content: read, never written."""
    life: Life
    chain: bytearray = field(default_factory=bytearray)
    """The cells that `tokens` must find in its table."""

    @property
    def name(self) -> tuple[int, int]:
        return self.params.seed, self.output_index


class FakeMemory:
    """Blocks of content. `step` is the plan being run, `acknowledged` the newest step of each rank."""

    def __init__(self, num_blocks: int, block_size: int, world_size: int) -> None:
        self.block_size = block_size
        self.step = 0
        self.acknowledged = [0] * world_size
        """Newest step of each rank that the scheduler knows of."""
        self.poisoned: set[Life] = set()
        """Lives whose content the scheduler knows to be not finite."""
        self._cells = bytearray(num_blocks * block_size * CELL)
        self._users = [0] * num_blocks
        """Table entries naming each block."""
        self._touched = [0] * num_blocks
        """Newest step that reads or writes each block."""
        self._written = [0] * num_blocks
        """Newest step that writes each block."""
        self._bad_cells: dict[int, Life] = {}
        """Cell -> the life that wrote values there that are not finite."""

    def leave(self, table: list[int]) -> None:
        """A table is gone."""
        for block in table:
            self._users[block] -= 1

    def share(self, block: int, is_fork: bool) -> None:
        """A table that begins with content names this block. A fork may share what its living parent is to write."""
        self._users[block] += 1
        if is_fork:
            return
        if self._written[block] > min(self.acknowledged):
            raise Broken(
                f"block {block} is shared before its step {self._written[block]} is acknowledged by every rank"
            )
        for cell in range(block * self.block_size, (block + 1) * self.block_size) if self.poisoned else ():
            writer = self._bad_cells.get(cell)
            demand(writer not in self.poisoned, f"block {block} is shared, but {writer} wrote no numbers there")

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

    def copy(self, source: int, target: int) -> None:
        """The target, just handed out, gets the source's content."""
        size = self.block_size
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
        size = self.block_size
        stride = size * CELL
        cells = b"".join([self._cells[b * stride : (b + 1) * stride] for b in slot.table[: -(-start // size)]])
        if cells[: start * CELL] == slot.chain[: start * CELL]:
            return True
        for position in range(start):
            at = position * CELL
            if cells[at : at + CELL] == slot.chain[at : at + CELL]:
                continue
            block = slot.table[position // size]
            demand(
                block * size + position % size in self._bad_cells,
                f"{slot.name} reads wrong content at position {position} (block {block}, step {self.step})",
            )
        return False

    def write(self, slot: Slot, start: int, end: int, finite: bool, of_drafts: bool = False) -> None:
        """A row of positions start..end-1 leaves its cells. `of_drafts`: those of tokens that were refused."""
        size = self.block_size
        if end > len(slot.table) * size:
            raise Broken(f"{slot.name} writes up to {end}, its table has {len(slot.table)} blocks")
        for block in slot.table[: -(-end // size)]:
            self._touched[block] = self.step
        for index in range(start // size, -(-end // size)):
            block = slot.table[index]
            if block in slot.frozen:
                raise Broken(f"{slot.name} writes block {block}, which it was given to read")
            if self._users[block] != 1:
                raise Broken(f"{slot.name} writes block {block}, shared by {self._users[block]}")
            low, high = max(start, index * size), min(end, (index + 1) * size)
            at = block * size + low - index * size
            content = slot.chain[low * CELL : high * CELL] if finite else b"\xff" * ((high - low) * CELL)
            if of_drafts:
                content = b"\xdd" * ((high - low) * CELL)
            self._cells[at * CELL : (at + high - low) * CELL] = content
            self._written[block] = self.step
            if self._bad_cells or not finite:
                for cell in range(at, at + high - low):
                    self._bad_cells.pop(cell, None)
                    if not finite:
                        self._bad_cells[cell] = slot.life
