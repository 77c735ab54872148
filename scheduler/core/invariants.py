"""Every rule that must hold between two events, recomputed from first principles: no counter is believed.

I1 blocks in one place each; I2 reference counts; I3 who may write; I4 fences; I5 cache, proven or planned; I6 one
terminal event; I7 token counts; I8 states; I9 reservations and counters; I10 windows; I12 plans; I14 quiescence; I15 to
I17 in `media`. They hold under -O.
"""

from collections import Counter

from quire.proto.messages.plans import NO_BLOCK
from quire.proto.prefix_key import block_contents
from quire.scheduler.core.block_invariants import check_blocks, name_of, require
from quire.scheduler.core.core import Core
from quire.scheduler.core.media.invariants import check_media
from quire.scheduler.errors import InvariantError
from quire.scheduler.state.epoch import Epoch
from quire.scheduler.state.prefix import PrefixEntry
from quire.scheduler.state.sequence import Sequence

__all__ = ["InvariantError", "check"]


def check(core: Core, part: slice = slice(None)) -> None:
    """Raises `InvariantError` naming the first rule that is broken. Of cached prefixes it looks at `part` of all."""
    _requests(core)
    if core.group_epoch is None:
        return
    live = core.group_epoch.running.live()
    _slots(core.group_epoch, live)
    check_blocks(core.group_epoch, live)
    entries = core.group_epoch.memory.index.entries(part)
    _cache(core.group_epoch, live, entries, part)
    _planned(core.group_epoch, live, entries)
    _plans(core, core.group_epoch)
    check_media(core.config, core.group_epoch, live)
    _quiet(core, core.group_epoch)


def _requests(core: Core) -> None:
    live_requests = core.live_requests
    requests = list(live_requests.registry.requests())
    sequences = [sequence for request in requests for sequence in request.sequences]
    by_state = Counter(sequence.state for sequence in sequences)
    num_live = by_state["waiting"] + by_state["running"]
    require("I9", live_requests.num_live == num_live, f"num_live is {live_requests.num_live}, {num_live} outputs live")
    for request in requests:
        states = [sequence.state for sequence in request.sequences]
        live, waiting = len(states) - states.count("finished"), states.count("waiting")
        if not request.num_live == live > 0:
            raise InvariantError("I6", f"request {request.number}: {live} live, counted {request.num_live}")
        if request.num_waiting != waiting:
            raise InvariantError("I9", f"request {request.number}: {waiting} wait, counted {request.num_waiting}")
    queued = live_requests.waiting.sequences()
    names = {id(sequence) for sequence in queued}
    require("I8", len(names) == len(queued), "an output waits twice")
    expected = {id(sequence) for sequence in sequences if sequence.state == "waiting"}
    require("I8", names == expected, f"{len(expected)} outputs wait, {len(names)} are in the queue")
    num_seqs = live_requests.waiting.num_seqs
    require("I9", num_seqs == len(queued), f"num_seqs is {num_seqs}, not {len(queued)}")
    with_queued = [request for request in requests if request.num_waiting]
    require("I9", live_requests.waiting.num_requests == len(with_queued), "waiting requests are miscounted")
    num_tokens = sum(request.num_prompt for request in with_queued)
    require("I9", live_requests.waiting.num_tokens == num_tokens, f"waiting tokens are not {num_tokens}")
    require(
        "I9",
        len(live_requests.deadlines) == len(requests),
        f"{len(live_requests.deadlines)} deadlines, {len(requests)} requests",
    )
    num_labelled = sum(len(same) for same in live_requests.registry.labels.values())
    require("I9", num_labelled == len(requests), f"{num_labelled} labelled requests of {len(requests)}")
    running = 0 if core.group_epoch is None else len(core.group_epoch.running.live())
    require("I8", running == by_state["running"], f"{by_state['running']} outputs run, {running} have slots")
    for sequence in queued:
        if sequence.slot >= 0 or sequence.tables or sequence.num_known != len(sequence.tokens):
            raise InvariantError("I8", f"{name_of(sequence)} waits, but has a slot, blocks or stale tokens")
        if sequence.num_known >= sequence.request.limit:
            raise InvariantError("I7", f"{name_of(sequence)} waits with nothing left to draw")


def _slots(group_epoch: Epoch, live: list[Sequence]) -> None:
    running = group_epoch.running
    require("I9", running.num_active == len(live), f"num_active is {running.num_active}, {len(live)} run")
    active = [slot for slot in range(running.num_slots) if running.active[slot]]
    require("I8", active == [sequence.slot for sequence in live], "active slots are not those of the running outputs")
    for sequence in live:
        slot, request = sequence.slot, sequence.request
        prompt, known, tokens = (
            int(column[slot]) for column in (running.num_prompt, running.num_known, running.num_tokens)
        )
        scheduled, computed = int(running.num_scheduled[slot]), int(running.num_computed[slot])
        counts = f"{name_of(sequence)}: prompt {prompt}, known {known}, tokens {tokens}, limit {request.limit}"
        holds = prompt == request.num_prompt <= known <= tokens <= request.limit and known < request.limit
        require("I7", holds, counts)
        require("I7", computed <= scheduled < tokens, f"{counts}, computed {computed}, scheduled {scheduled}")
        require("I7", computed <= known, f"{counts}, computed {computed}")
        same = running.history[slot, :prompt].tobytes() == request.prompt.tobytes()
        require("I7", same, f"{name_of(sequence)}: the history does not begin with the prompt")
        owner = (request.number, sequence.output_index, request.frontend.index)
        in_slot = (running.number[slot], running.output_index[slot], running.frontend[slot])
        require("I8", owner == in_slot, f"{name_of(sequence)}: slot {slot} says it is {in_slot}")
        sizes = group_epoch.memory.block_sizes
        reserved = [len(table) for table in sequence.tables]
        counted = [int(held[slot]) for held in running.num_blocks]
        require("I9", counted == reserved, f"{name_of(sequence)}: tables of {reserved} are counted as {counted}")
        fits = len(sizes) == len(reserved) and all(
            scheduled <= length * size < tokens + size for length, size in zip(reserved, sizes, strict=True)
        )
        require("I9", fits, f"{counts}, scheduled {scheduled}, but {reserved} blocks of {sizes}")


def _cache(group_epoch: Epoch, live: list[Sequence], entries: list[PrefixEntry], part: slice) -> None:
    running, memory = group_epoch.running, group_epoch.memory
    for listed in entries:
        if memory.index.by_block[listed.block] is not listed:
            raise InvariantError("I5", f"block {listed.block} and its entry disagree")
    for block in filter(memory.pool.idle.__contains__, range(memory.pool.num_blocks)[part]):
        if memory.index.by_block[block] is None or not memory.pool.idle.is_linked(block):
            raise InvariantError("I5", f"idle block {block} has no entry, or no place in the list")
    cached = {listed.block for listed in entries}
    homeless = [block for block in cached if not memory.pool.refs[block] and block not in memory.pool.idle]
    require("I5", set(homeless) <= memory.pool.fenced.keys(), f"cached blocks {homeless[:8]} are free")
    begun: dict[int, int] = {}
    for plan in reversed(group_epoch.in_flight.plans):
        current = running.generation[plan.slots] == plan.generations
        rows = zip(plan.slots[current].tolist(), (plan.ends - plan.num_tokens)[current].tolist(), strict=True)
        begun.update(rows)
    origins: dict[int, tuple[bytes, int]] = {}
    for sequence in live:
        request, slot = sequence.request, sequence.slot
        acknowledged = begun.get(slot, int(running.num_scheduled[slot]))
        history = running.history[slot, : int(running.num_known[slot])].tobytes()
        for group, (table, width) in enumerate(zip(sequence.tables, memory.block_sizes, strict=True)):
            context = memory.index.root(group, request.adapter, request.cache_salt).content
            for place, block in enumerate(table):
                mine = None if block == NO_BLOCK else memory.index.by_block[block]
                if mine is None:
                    continue
                begin, end = place * width, (place + 1) * width
                if end > acknowledged and not mine.step:
                    raise InvariantError("I5", f"{name_of(sequence)}: block {block} is cached too early")
                tokens = history[4 * begin : 4 * end]
                if [mine.content] != list(block_contents(tokens, width, place, request.placeholders)):
                    raise InvariantError("I5", f"{name_of(sequence)}: block {block} is cached with another content")
                if _origin(mine, origins) != (context, place + 1):
                    detail = f"block {block} is of another group, salt, adapter or place"
                    raise InvariantError("I5", f"{name_of(sequence)}: {detail}")


def _planned(group_epoch: Epoch, live: list[Sequence], entries: list[PrefixEntry]) -> None:
    """A listed block is unproven exactly while the plan that fills it is in flight, and no earlier plan reads it."""
    running, memory = group_epoch.running, group_epoch.memory
    named = {
        block: (step, slot)
        for step, by_slot in memory.planned.items()
        for slot, blocks in by_slot.items()
        for block in blocks
    }
    for listed in entries:
        if listed.step != (step := named.get(listed.block, (0, 0))[0]):
            raise InvariantError("I5", f"block {listed.block} is listed for plan {listed.step}, named for {step}")
    idle = [block for block in named if block in memory.pool.idle]
    require("I5", not idle, f"blocks {idle[:8]} are idle before they are written")
    rows: dict[int, list[tuple[int, int, int]]] = {}
    in_flight: set[tuple[int, int]] = set()
    for plan in group_epoch.in_flight.plans if named else ():
        in_flight.update((plan.step, slot) for slot in plan.slots.tolist())
        current = running.generation[plan.slots] == plan.generations
        columns = (column[current].tolist() for column in (plan.slots, plan.ends - plan.num_tokens, plan.ends))
        for slot, start, stop in zip(*columns, strict=True):
            rows.setdefault(slot, []).append((plan.step, start, stop))
    unknown = set(named.values()) - in_flight
    require("I5", not unknown, f"blocks are named for rows (plan, slot) {unknown}, which are not in flight")
    for sequence in live if named else ():
        for table, width in zip(sequence.tables, memory.block_sizes, strict=True):
            for place, block in enumerate(table):
                if block in named:
                    _filled_first(sequence, block, (place + 1) * width, named[block], rows.get(sequence.slot, []))


def _filled_first(
    sequence: Sequence, block: int, end: int, owner: tuple[int, int], rows: list[tuple[int, int, int]]
) -> None:
    """The row `owner` (plan, slot) fills the block, whose last token is the output's `end`, before `rows` read it."""
    for step, start, stop in rows:
        if (step, sequence.slot) == owner:
            require("I5", start < end <= stop, f"{name_of(sequence)}: plan {step} does not fill block {block}")
        elif step < owner[0]:
            require("I5", start < end, f"{name_of(sequence)} reads block {block} in plan {step}, before it is written")


def _origin(entry: PrefixEntry, known: dict[int, tuple[bytes, int]]) -> tuple[bytes, int]:
    """The context an entry's chain begins with, and its length."""
    chain: list[PrefixEntry] = []
    link = entry
    while link.parent is not None and id(link) not in known:
        chain.append(link)
        link = link.parent
    context, depth = known.get(id(link), (link.content, 0))
    for link in reversed(chain):
        depth += 1
        known[id(link)] = context, depth
    return context, depth


def _plans(core: Core, group_epoch: Epoch) -> None:
    plans = list(group_epoch.in_flight.plans)
    require("I12", len(plans) <= group_epoch.in_flight.group.max_in_flight, f"{len(plans)} plans are unacknowledged")
    steps = [plan.step for plan in plans]
    expected = list(range(group_epoch.in_flight.step - len(plans) + 1, group_epoch.in_flight.step + 1))
    require("I12", steps == expected, f"plans {steps} are in flight, not {expected}")
    for plan in plans:
        num_rows, num_tokens = len(plan.slots), int(plan.num_tokens.sum())
        require("I12", 0 < num_rows <= core.config.max_num_seqs, f"plan {plan.step} has {num_rows} rows")
        require("I12", num_tokens <= core.config.max_num_batched_tokens, f"plan {plan.step} runs {num_tokens} tokens")
        require("I12", len(set(plan.slots.tolist())) == num_rows, f"plan {plan.step} names a slot twice")
        counts = plan.num_tokens.tolist()
        is_long = [count > 1 for count in counts[plan.num_decodes :]]
        require("I12", min(counts) >= 1 and is_long == sorted(is_long), f"plan {plan.step}: rows out of order")
        most = 1 if plan.num_draft is None else 1 + int(plan.num_draft.max())
        require("I12", max(counts[: plan.num_decodes], default=1) <= most, f"plan {plan.step}: a decode is too long")


def _quiet(core: Core, group_epoch: Epoch) -> None:
    if core.live_requests.num_live or group_epoch.in_flight.plans:
        return
    pool, live_requests = group_epoch.memory.pool, core.live_requests
    require("I14", pool.available == pool.num_blocks, f"{pool.num_blocks - pool.available} blocks are lost")
    require("I14", not group_epoch.memory.fences, "fences stand with nothing in flight")
    empty = (
        not live_requests.registry.frontends and not live_requests.registry.labels and not len(live_requests.deadlines)
    )
    require("I14", empty, "frontends, labels or deadlines are left over")
