"""Rules of the encoder memory that must hold between two events, recomputed from first principles.

I15 pages in one place each; I16 who holds entries; I17 what plans encode; I18 spans whose tokens see each
other are planned whole.
"""

import itertools
from collections import Counter

from quire.proto.messages.media import num_patches
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.errors import InvariantError
from quire.scheduler.state.encoder_memory import EncoderEntry, EncoderMemory, key_of
from quire.scheduler.state.epoch import Epoch
from quire.scheduler.state.sequence import Sequence


def check_media(config: SchedulerConfig, group_epoch: Epoch, live: list[Sequence]) -> None:
    """Raises `InvariantError` naming the first rule that is broken."""
    memory = group_epoch.encoder_memory
    if memory is None:
        _require("I16", not any(one.request.media for one in live), "an output has items, the model reads text alone")
        return
    _pages(memory)
    _readers(group_epoch, memory, live)
    for plan in group_epoch.in_flight.plans:
        total = sum(num_patches(encode.grid) for encode in plan.encodes)
        most = config.max_num_encoder_patches
        fits = total <= most or len(plan.encodes) == 1
        _require("I17", fits, f"plan {plan.step} encodes {total} patches, at most {most} may be")
        written = [page for entry in plan.encoded for page in _pages_of(entry)]
        _require("I17", len(set(written)) == len(written), f"plan {plan.step} encodes two items to one page")
        named = [(encode.digest, encode.grid) for encode in plan.encodes]
        _require("I17", named == [entry.key for entry in plan.encoded], f"plan {plan.step} encodes other items")


def _require(rule: str, holds: bool, detail: str) -> None:
    if not holds:
        raise InvariantError(rule, detail)


def _pages_of(entry: EncoderEntry) -> list[int]:
    return [page for first, count in entry.runs for page in range(first, first + count)]


def _pages(memory: EncoderMemory) -> None:
    num_pages = memory.facts.num_pages
    places = Counter(memory.free)
    for entry in memory.entries.values():
        places.update(_pages_of(entry))
        _require("I15", entry.num_pages == len(_pages_of(entry)), f"an entry counts {entry.num_pages} pages")
    _require("I15", set(places) == set(range(num_pages)), f"{len(places)} pages are somewhere, {num_pages} there are")
    _require("I15", len(places) == places.total(), f"{places.total() - len(places)} pages are in two places")
    for key, entry in memory.entries.items():
        _require("I15", entry.key == key, f"an entry of {entry.key} is listed as {key}")
        _require("I15", not entry.is_proven or not entry.bound, "a proven entry still names who would lose by it")
    idle = {key for key, entry in memory.entries.items() if not entry.num_readers}
    _require("I15", idle == memory.idle.keys(), f"{len(idle)} entries have no reader, {len(memory.idle)} are idle")
    _require("I15", len(memory.free) == len([*memory.free]), f"{len(memory.free)} pages are counted as free")
    runs = memory.free.runs
    apart = all(sum(one) < other[0] for one, other in itertools.pairwise(runs))
    _require("I15", apart, f"the runs of free pages are not in order, or touch: {runs[:20]}")
    available = len(memory.free) + sum(entry.num_pages for entry in memory.idle.values())
    _require("I15", available == memory.available, f"{available} pages are available, counted {memory.available}")


def _readers(group_epoch: Epoch, memory: EncoderMemory, live: list[Sequence]) -> None:
    """Exactly the running outputs hold, each no more than the spans that are planned in part."""
    running = group_epoch.running
    _require("I16", memory.held.keys() <= set(live), "an output without a slot holds encoder memory")
    readers = Counter(entry.key for spans in memory.held.values() for entry in spans.values())
    counted = {key: entry.num_readers for key, entry in memory.entries.items() if entry.num_readers}
    _require("I16", counted == readers, f"{readers.total()} spans are held, entries count {sum(counted.values())}")
    unproven = {id(entry) for plan in group_epoch.in_flight.plans for entry in plan.encoded}
    for entry in memory.entries.values():
        _require("I17", entry.is_proven or id(entry) in unproven, "no plan in flight encodes an unproven entry")
    for sequence in live:
        slot, request = sequence.slot, sequence.request
        end = request.placeholders[-1].stop if request.placeholders else 0
        _require("I16", running.span_end[slot] == end, f"slot {slot}: its spans end at {running.span_end[slot]}")
        num_scheduled = int(running.num_scheduled[slot])
        within = any(span.start < num_scheduled < span.stop for span in request.placeholders)
        is_part = memory.facts.whole_spans and within and num_scheduled != sequence.num_shared
        _require("I18", not is_part, f"slot {slot}: a span is planned in part, up to {num_scheduled}")
        for index, entry in memory.held.get(sequence, {}).items():
            item = request.media[index]
            name = f"output {request.number}/{sequence.output_index} span {index}"
            holds = memory.entries.get(entry.key) is entry and entry.key == key_of(item)
            _require("I16", holds, f"{name}: it holds another item")
            holds = item.span.start < num_scheduled < item.span.stop
            _require("I16", holds, f"{name}: {num_scheduled} tokens are planned, and it is held")
            num_pages = memory.facts.pages_for(item.span.num_encoded)
            _require("I16", entry.num_pages == num_pages, f"{name}: {entry.num_pages} pages, not {num_pages}")
            bound = entry.is_proven or (slot, int(running.generation[slot])) in entry.bound
            _require("I16", bound, f"{name}: it would not be known as lost")
