"""Acceptance of a step's result: the tokens that count, and the outputs that end by them."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from quire.proto.messages.params import FinishReason
from quire.proto.messages.plans import RowLogprobs, StepResult
from quire.proto.messages.requests import ModelFacts, OutputLogprobs
from quire.proto.transport.wire import Int32, unpack
from quire.scheduler.errors import ResultError
from quire.scheduler.state.epoch import Epoch
from quire.scheduler.state.in_flight import PlannedStep
from quire.scheduler.state.running import Int64, Mask
from quire.scheduler.state.sequence import Sequence


@dataclass(slots=True)
class Accepted:
    """The meaning of one result. No output has left its slot yet."""

    slots: list[Int64] = field(default_factory=list)
    """Slots that gained a token, an array per round: a row may yield several tokens."""
    positions: list[Int64] = field(default_factory=list)
    """Position of each token among its output's generated ones, per round."""
    tokens: list[Int32] = field(default_factory=list)
    """The tokens, per round."""
    first: list[Sequence] = field(default_factory=list)
    """Outputs that got their first token."""
    ended: list[tuple[Sequence, FinishReason, int]] = field(default_factory=list)
    """Outputs that ended, with the reason and the token that stopped them, or -1."""
    bad: list[Sequence] = field(default_factory=list)
    """Outputs with values that are not finite."""
    lost: list[Sequence] = field(default_factory=list)
    """Outputs that were given the rows of an image whose file, their own, was lost."""
    misled: list[Sequence] = field(default_factory=list)
    """Outputs that shared, before it was proven, what bad or lost ones have written, or the rows of an image that was
    to be read from another frontend's file: they run again.
    """
    stuck: list[Sequence] = field(default_factory=list)
    """Outputs whose grammar allowed no further token."""
    chunks: list[tuple[Sequence, int]] = field(default_factory=list)
    """Outputs of which a chunk of the prompt was computed, with its number of tokens."""
    logprobs: list[tuple[Sequence, OutputLogprobs]] = field(default_factory=list)
    vectors: list[tuple[Sequence, bytes]] = field(default_factory=list)
    """Prompts with their vectors in float32; each of them ended."""


def accept(group_epoch: Epoch, plan: PlannedStep, result: StepResult) -> Accepted:
    """Append the sampled tokens to the history. Raises `ResultError` before any change when the result does not fit."""
    running = group_epoch.running
    rows = plan.samples.nonzero()[0]
    tokens, counts = _columns(plan, result, len(rows))
    _check_vectors(plan, result, len(rows), group_epoch.facts)
    alive = running.generation[plan.slots] == plan.generations
    accepted = Accepted()
    outside = tokens.view(np.uint32) >= group_epoch.facts.vocab_size  # a negative one is a large one
    bad_rows = set(result.bad_rows)
    if np.count_nonzero(outside):
        per_token = rows if counts is None else np.repeat(rows, counts)
        bad_rows.update(per_token[outside].tolist())
    if bad_rows or result.lost_encodes:
        _judge(group_epoch, plan, bad_rows, result.lost_encodes, alive, accepted)
    for row in result.stuck_rows:
        if alive[row]:
            accepted.stuck.append(running.at(int(plan.slots[row])))
            alive[row] = False
    live = alive[rows]
    if group_epoch.facts.makes_vectors:
        _take_vectors(group_epoch, plan, alive, result.embeddings, accepted)
    elif counts is None:
        _append(group_epoch, plan.slots[rows[live]], tokens[live], accepted)
    else:
        _append_many(group_epoch, plan, rows, live, tokens, counts, accepted)
    running.num_computed[plan.slots[alive]] = plan.ends[alive]
    for row in range(plan.num_decodes, len(plan.slots)):
        if alive[row]:
            accepted.chunks.append((running.at(int(plan.slots[row])), int(plan.num_tokens[row])))
    if result.logprobs:
        accepted.logprobs.extend(_logprobs(group_epoch, plan, alive, result.logprobs))
    return accepted


def _judge(
    group_epoch: Epoch,
    plan: PlannedStep,
    bad_rows: set[int],
    lost_encodes: tuple[int, ...],
    alive: Mask,
    accepted: Accepted,
) -> None:
    """Find the outputs of bad rows and lost images, and those that borrowed what they wrote. None is `alive` any more.

    An output that has borrowed blocks itself is not blamed for its bad row: it runs again, on proven blocks alone.
    """
    running, memory = group_epoch.running, group_epoch.memory
    given, poisoned = _given(group_epoch, plan, lost_encodes)
    files = {(plan.encodes[number].folder, plan.encodes[number].digest) for number in lost_encodes}
    for sequence in given:
        # of the same image, each frontend has a file of its own: who has another one than was lost encodes that
        is_own = any((item.folder, item.digest) in files for item in sequence.request.media)
        (accepted.lost if is_own else accepted.misled).append(sequence)
    for row in sorted(bad_rows):
        slot = int(plan.slots[row])
        if not alive[row]:  # its output has left, but others may share what the row has written
            poisoned.update(memory.fail(plan.step, slot))
        elif running.at(slot) in given:
            continue
        elif running.at(slot).borrowed:
            accepted.misled.append(running.at(slot))
        else:
            accepted.bad.append(running.at(slot))
    found = accepted.lost + accepted.bad + accepted.misled
    others = [sequence for sequence in running.live() if sequence.borrowed and sequence not in found]
    while found or poisoned:
        poisoned.update(block for sequence in found for block in memory.written_by(sequence))
        found = [sequence for sequence in others if not poisoned.isdisjoint(sequence.borrowed)]
        if not found:
            break
        accepted.misled += found
        others = [sequence for sequence in others if sequence not in found]
    ended = accepted.lost + accepted.bad + accepted.misled
    alive &= ~np.isin(plan.slots, [sequence.slot for sequence in ended])


def _given(group_epoch: Epoch, plan: PlannedStep, lost_encodes: tuple[int, ...]) -> tuple[list[Sequence], set[int]]:
    """Find the running outputs that were given the rows of these encodes, by the plan or by those behind it, and the
    blocks that others, which have left since, were to fill.
    """
    running, memory = group_epoch.running, group_epoch.memory
    bound = sorted({one for number in lost_encodes for one in plan.encoded[number].bound})
    lost = [running.at(slot) for slot, generation in bound if running.generation[slot] == generation]
    poisoned: set[int] = set()
    for slot, generation in bound:
        if running.generation[slot] != generation:
            for later in group_epoch.in_flight.plans:
                if later.step >= plan.step and (later.generations[later.slots == slot] == generation).any():
                    poisoned.update(memory.fail(later.step, slot))
    return lost, poisoned


def _columns(plan: PlannedStep, result: StepResult, num_samples: int) -> tuple[Int32, Int64 | None]:
    tokens = unpack(result.token_ids)
    counts = unpack(result.counts).astype(np.int64) if result.counts else None
    if counts is not None:
        most = np.ones(num_samples, np.int64) if plan.num_draft is None else plan.num_draft[plan.samples] + 1
        if len(counts) != num_samples or (counts < 1).any() or (counts > most).any():
            raise ResultError(f"step {plan.step}: counts {counts.tolist()} do not fit {num_samples} sampling rows")
    elif plan.num_draft is not None:
        raise ResultError(f"step {plan.step}: the plan has drafts, the result has no counts")
    expected = num_samples if counts is None else int(counts.sum())
    if len(tokens) != expected:
        raise ResultError(f"step {plan.step}: {len(tokens)} tokens for {expected} draws of {num_samples} sampling rows")
    for kind, bad in (("bad", result.bad_rows), ("stuck", result.stuck_rows)):
        if bad and not 0 <= min(bad) <= max(bad) < len(plan.slots):
            raise ResultError(f"step {plan.step}: {kind} rows {bad} of a plan with {len(plan.slots)} rows")
    lost = result.lost_encodes
    if lost and not 0 <= min(lost) <= max(lost) < len(plan.encodes):
        raise ResultError(f"step {plan.step}: encodes {lost} are lost of a plan with {len(plan.encodes)}")
    return tokens, counts


def _check_vectors(plan: PlannedStep, result: StepResult, num_samples: int, facts: ModelFacts) -> None:
    if not facts.makes_vectors and not result.embeddings:
        return
    expected = [4 * facts.vector_size] * num_samples if facts.makes_vectors else []
    if facts.by_token:
        expected = (4 * facts.vector_size * plan.num_tokens).tolist()
    if [len(vector) for vector in result.embeddings] != expected:
        each = " for each token" if facts.by_token else ""
        sizes = f"{len(result.embeddings)} vectors, not {len(expected)} of {facts.vector_size} numbers{each}"
        raise ResultError(f"step {plan.step}: {sizes}")


def _take_vectors(
    group_epoch: Epoch, plan: PlannedStep, alive: Mask, vectors: tuple[bytes, ...], accepted: Accepted
) -> None:
    """Each live prompt that ended in this step has its vector, or those of all its tokens, and is done."""
    running = group_epoch.running
    rows = range(len(plan.slots)) if group_epoch.facts.by_token else np.flatnonzero(plan.samples).tolist()
    for row, vector in zip(rows, vectors, strict=True):
        if not alive[row]:
            continue
        slot = int(plan.slots[row])
        sequence = running.at(slot)
        sequence.parts.append(vector)
        if not plan.samples[row]:
            continue
        running.awaits_first[slot] = False
        accepted.vectors.append((sequence, b"".join(sequence.parts)))
        accepted.first.append(sequence)
        accepted.ended.append((sequence, "stop", -1))


def _append(group_epoch: Epoch, slots: Int64, tokens: Int32, accepted: Accepted) -> Mask:
    """Append one token in each of these live slots. Returns which of them go on."""
    running = group_epoch.running
    known = running.append(slots, tokens)
    accepted.slots.append(slots)
    accepted.positions.append(known - running.num_prompt[slots] - 1)
    accepted.tokens.append(tokens)
    first = slots[running.awaits_first[slots]]
    if len(first):
        running.awaits_first[first] = False
        accepted.first.extend(running.at(slot) for slot in first.tolist())
    stopped = np.zeros(len(slots), bool)
    for token in group_epoch.facts.eos_token_ids:
        stopped |= tokens == token
    if np.count_nonzero(stopped):
        stopped &= running.stops_at_eos[slots]
    for row in running.has_stop_ids[slots].nonzero()[0].tolist():
        stopped[row] |= int(tokens[row]) in running.at(int(slots[row])).request.stop_ids
    if np.count_nonzero(stopped):
        stopped &= known >= running.stop_from[slots]
    ended = stopped | (known >= running.limit[slots])
    for row in ended.nonzero()[0].tolist():
        sequence = running.at(int(slots[row]))
        accepted.ended.append((sequence, "stop", int(tokens[row])) if stopped[row] else (sequence, "length", -1))
    return ~ended


def _append_many(
    group_epoch: Epoch, plan: PlannedStep, rows: Int64, live: Mask, tokens: Int32, counts: Int64, accepted: Accepted
) -> None:
    """Append one to num_draft + 1 tokens per row, round by round; blocks of refused tokens are given back."""
    running = group_epoch.running
    rows, counts, starts = rows[live], counts[live], (np.cumsum(counts) - counts)[live]
    slots = plan.slots[rows]
    if plan.num_draft is not None:
        _take_back(group_epoch, plan.step, slots, plan.num_draft[rows] + 1 - counts)
    going = np.ones(len(slots), bool)
    for number in range(int(counts.max(initial=0))):
        turn = np.flatnonzero(going & (counts > number))
        going[turn] = _append(group_epoch, slots[turn], tokens[starts[turn] + number], accepted)
    # Drafts behind a stop were computed, too, but nobody will know what they were.
    plan.ends[rows] = np.minimum(plan.ends[rows], running.num_known[slots])


def _take_back(group_epoch: Epoch, step: int, slots: Int64, refused: Int64) -> None:
    """The KV of refused drafts is written but worthless: rows end earlier, in the plans that followed, too."""
    running = group_epoch.running
    by_slot = np.zeros(running.num_slots, np.int64)
    by_slot[slots] = refused
    running.correct(by_slot)
    group_epoch.in_flight.correct(step, by_slot)
    for slot in np.flatnonzero(by_slot).tolist():
        sequence = running.at(slot)
        group_epoch.memory.trim(sequence, int(running.num_tokens[slot]), group_epoch.in_flight.step)
        running.count_blocks(sequence)


def _logprobs(
    group_epoch: Epoch, plan: PlannedStep, alive: Mask, columns: tuple[RowLogprobs, ...]
) -> Iterator[tuple[Sequence, OutputLogprobs]]:
    """Name each row's logprobs by request: prompt positions once and in order, sampled ones as far as accepted."""
    for column in columns:
        if not 0 <= column.row < len(alive) or not alive[column.row]:
            continue
        sequence = group_epoch.running.at(int(plan.slots[column.row]))
        request, first, entries = sequence.request, column.first_position, column.entries
        if column.prompt:
            skip = sequence.next_prompt_logprob - first
            entries = entries[max(0, skip) :] if skip >= 0 else ()
            first = sequence.next_prompt_logprob
            entries = entries[: request.num_prompt - first]
            sequence.next_prompt_logprob += len(entries)
        else:
            entries = entries[: int(group_epoch.running.num_known[sequence.slot]) - first]
            first -= request.num_prompt
        if entries:
            yield sequence, OutputLogprobs(request.number, sequence.output_index, column.prompt, first, entries)
