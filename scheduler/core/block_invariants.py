"""The rules about blocks, of `invariants`: I1 to I4 and I10."""

from collections import Counter
from itertools import chain

import numpy as np
import numpy.typing as npt

from quire.proto.messages.plans import NO_BLOCK
from quire.proto.prefix_key import block_contents
from quire.scheduler.errors import InvariantError
from quire.scheduler.state.epoch import Epoch
from quire.scheduler.state.sequence import Sequence


def check_blocks(group_epoch: Epoch, live: list[Sequence]) -> None:
    """Raises `InvariantError`. `live`: the running outputs."""
    _windows(group_epoch, live)
    _blocks(group_epoch, live)
    _writers(group_epoch, live)


def require(rule: str, holds: bool, detail: str) -> None:
    if not holds:
        raise InvariantError(rule, detail)


def _few(blocks: npt.NDArray[np.int64]) -> list[int]:
    return [int(block) for block in blocks[:8]]


def name_of(sequence: Sequence) -> str:
    return f"output {sequence.request.number}/{sequence.output_index}"


def _windows(group_epoch: Epoch, live: list[Sequence]) -> None:
    """A table lacks blocks at its beginning alone, behind what rows from now on see, and holds no more than it may."""
    running, memory, facts = group_epoch.running, group_epoch.memory, group_epoch.facts
    most = facts.most_blocks or (0,) * len(facts.block_sizes)
    begun = running.num_scheduled if running.num_draft is None else running.num_computed
    for sequence in live:
        counted = running.num_behind[:, sequence.slot].tolist()
        require("I10", counted == sequence.num_behind, f"{name_of(sequence)}: {counted} blocks are not those behind")
        for group, (table, behind) in enumerate(zip(sequence.tables, sequence.num_behind, strict=True)):
            is_gone = [block == NO_BLOCK for block in table]
            num_unseen = memory.groups.num_unseen(group, int(begun[sequence.slot]))
            holds = is_gone == [place < behind for place in range(len(table))] and behind <= num_unseen
            require("I10", holds, f"{name_of(sequence)}: of group {group}, {num_unseen} blocks are unseen: {table}")
            held = len(table) - behind
            is_bounded = not most[group] or running.num_draft is not None or held <= most[group]
            require("I10", is_bounded, f"{name_of(sequence)} holds {held} blocks of group {group}")


def _blocks(group_epoch: Epoch, live: list[Sequence]) -> None:
    pool = group_epoch.memory.pool
    readers = Counter(block for sequence in live for held in sequence.held_blocks for block in held)
    idle = np.flatnonzero(pool.idle.mask(pool.num_blocks))
    require("I1", len(idle) == len(pool.idle), f"{len(idle)} blocks are idle, counted {len(pool.idle)}")
    placed = np.append(idle, np.fromiter(chain(pool.free, readers, pool.fenced), np.int64))
    strange = placed[(placed < 0) | (placed >= pool.num_blocks)]
    require("I1", not strange.size, f"blocks {_few(strange)} in a pool of {pool.num_blocks}")
    places = np.bincount(placed, minlength=pool.num_blocks)  # a pool may have millions of blocks: no loop over them
    twice, missing = np.flatnonzero(places > 1), np.flatnonzero(places == 0)
    require("I1", not twice.size, f"blocks {_few(twice)} are in two places")
    require("I1", not missing.size, f"blocks {_few(missing)} are nowhere")
    expected = np.zeros(pool.num_blocks, np.int64)
    expected[list(readers)] = list(readers.values())
    counted = pool.readers(pool.num_blocks)
    wrong = np.flatnonzero(counted != expected)
    require("I2", not wrong.size, f"blocks {_few(wrong)}: counts {_few(counted[wrong])} are not their readers")
    for sequence in live:
        holds = len(set().union(*sequence.held_blocks)) == sequence.num_blocks
        require("I2", holds, f"{name_of(sequence)} names a block twice: {sequence.tables}")
    acked = group_epoch.in_flight.acked
    steps = [fence.step for fence in group_epoch.memory.fences]
    require("I4", steps == sorted(steps), f"fences out of order: {steps}")
    behind = {(block, fence.step) for fence in group_epoch.memory.fences for block in fence.blocks}
    loose = [block for block, step in pool.fenced.items() if (block, step) not in behind]
    require("I4", not loose, f"blocks {loose[:8]} are fenced without a fence")
    holds = all(acked < step <= group_epoch.in_flight.step for step in steps)
    require("I4", holds, f"fences for steps {steps}, acknowledged {acked}, sent {group_epoch.in_flight.step}")
    believed = group_epoch.memory.acked
    require("I4", believed <= acked, f"memory believes step {believed}, acknowledged is {acked}")


def _writers(group_epoch: Epoch, live: list[Sequence]) -> None:
    running, memory = group_epoch.running, group_epoch.memory
    seen: dict[int, tuple[int, int, list[bytes], str, str]] = {}
    for sequence in live:
        for group, (table, size) in enumerate(zip(sequence.tables, memory.block_sizes, strict=True)):
            num_full = int(running.num_scheduled[sequence.slot]) // size
            for place, block in enumerate(table):
                if block == NO_BLOCK or memory.pool.refs[block] == 1:
                    continue
                require("I3", place < num_full, f"{name_of(sequence)} writes block {block}, which others read")
                tokens = running.history[sequence.slot, place * size : (place + 1) * size].tobytes()
                request = sequence.request
                contents = list(block_contents(tokens, size, place, request.placeholders))
                prefix = group, place, contents, request.adapter, request.cache_salt
                same = seen.setdefault(block, prefix) == prefix
                require("I3", same, f"block {block} is shared by different groups, prefixes, adapters or salts")
