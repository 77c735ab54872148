"""Plans a worker runs before it is ready: the worst step, to measure memory, and a small one, to find faults early."""

from quire.proto.messages.params import SamplingParams
from quire.proto.messages.plans import Admit, StepPlan
from quire.proto.transport.wire import ints
from quire.worker.config import WorkerConfig
from quire.worker.memory.budget import Capacity
from quire.worker.memory.kv_layout import KVLayout
from quire.worker.step.runner import Runner

GREEDY = SamplingParams(temperature=0.0)
TRUNCATED = SamplingParams(top_p=0.9, top_k=50, min_p=0.01)
EVERY_STAGE = SamplingParams(
    top_p=0.9,
    top_k=50,
    min_p=0.01,
    repetition_penalty=1.1,
    logit_bias=((0, 1.0),),
    allowed_token_ids=(0,),
    logprobs=20,
)
SHORT, LONG = 8, 24
"""Prompts: kernels of one step choose other tiles for sixteen tokens and fewer than for more."""
FEW_ROWS = (1, 2, 4, 8, 16)
"""Numbers of rows up to which linear layers have kernels of their own."""


def plan(
    lengths: list[int], layout: KVLayout, params: SamplingParams, *, decode: bool = False, room: int = 0
) -> StepPlan:
    """A step that runs whole sequences of these lengths in slots 0, 1, ..., or their next tokens if `decode`.

    `room`: further tokens for which the tables hold blocks.
    """
    rows = len(lengths)
    if decode:
        return StepPlan(0, 0, b"", ints(range(rows)), ints([1] * rows), b"\1" * rows)
    admits, next_block = [], 0
    for slot, length in enumerate(lengths):
        tables = []
        for block_size in layout.block_sizes:
            num_blocks = -(-(length + room) // block_size)
            tables.append(ints(range(next_block, next_block + num_blocks)))
            next_block += num_blocks
        admits.append(Admit(slot, bytes(4 * length), length, 0, 0, params, tuple(tables)))
    return StepPlan(0, 0, b"", ints(range(rows)), ints(lengths), b"\1" * rows, admits=tuple(admits))


def release(num_slots: int) -> StepPlan:
    return StepPlan(0, 0, b"", b"", b"", b"", releases=ints(range(num_slots)))


def worst_lengths(config: WorkerConfig) -> list[int]:
    """The most tokens and the most rows one step may have, together."""
    rows = min(config.max_num_seqs, config.max_num_batched_tokens)
    length, longer = divmod(config.max_num_batched_tokens, rows)
    return [length] * (rows - longer) + [length + 1] * longer


def held_lengths(lengths: list[int], layout: KVLayout, capacity: Capacity) -> list[int]:
    """As many of these rows, and with them as many tokens, as the blocks of a cache allow."""
    longest = max(1, capacity.max_model_len - 1)
    blocks = sum(layout.blocks_for(length) for length in lengths)
    if blocks <= capacity.num_blocks and max(lengths) <= longest:
        return lengths
    rows, left, held = min(len(lengths), capacity.num_blocks // layout.blocks_for(1)), sum(lengths), []
    blocks, more = divmod(capacity.num_blocks, rows)
    for row in range(rows):
        most = layout.tokens_in(blocks + (row < more), longest)
        held.append(min(most, left - (rows - row - 1)))  # one token for each row behind it
        left -= held[-1]
    return held


def run_worst(runner: Runner, config: WorkerConfig, layout: KVLayout, capacity: Capacity | None = None) -> None:
    """One step of the worst shape with every stage of sampling that needs memory.

    Nothing of it remains in the tables of a `capacity`; without one they are thrown away.
    """
    lengths = worst_lengths(config)
    if capacity is not None:
        lengths = held_lengths(lengths, layout, capacity)
    runner.collect(runner.launch(plan(lengths, layout, EVERY_STAGE)))
    if capacity is not None:
        runner.collect(runner.launch(release(len(lengths))))


def warm_up(runner: Runner, config: WorkerConfig, layout: KVLayout, capacity: Capacity, *, thorough: bool) -> None:
    """Prefill and decode steps of short sequences, then their release: nothing of them remains in the tables.

    `thorough`: in every shape and with every stage of sampling for which a kernel is compiled at its first use, so that
    none is compiled under a request.
    """
    longest = min(capacity.max_model_len - 1, config.max_num_batched_tokens)
    if not thorough:
        return _run_sequences(runner, config, layout, capacity, GREEDY, 1, max(1, min(SHORT, longest)))
    for params in (GREEDY, TRUNCATED, EVERY_STAGE):
        for rows in FEW_ROWS:
            _run_sequences(runner, config, layout, capacity, params, rows, 1)
        _run_sequences(runner, config, layout, capacity, params, 1, max(1, min(LONG, longest)))
    if capacity.num_blocks > 1:
        runner.collect(runner.launch(StepPlan(0, 0, b"", b"", b"", b"", copies=ints([0, 1]))))
    return None


def warm_up_embeddings(
    runner: Runner, config: WorkerConfig, layout: KVLayout, capacity: Capacity, *, thorough: bool
) -> None:
    """Steps of whole prompts, then their release, for a model that embeds.

    `thorough`: also a step as large as any, which finds out whether there is memory for it.
    """
    longest = min(capacity.max_model_len, config.max_num_batched_tokens)
    shapes = [(rows, 1) for rows in FEW_ROWS] + [(1, LONG), (config.max_num_seqs, longest)] if thorough else []
    for rows, wanted in shapes or [(1, SHORT)]:
        length = min(wanted, longest)
        held = capacity.num_blocks // layout.blocks_for(length)
        rows = min(rows, config.max_num_seqs, config.max_num_batched_tokens // length, held)
        runner.collect(runner.launch(plan([length] * rows, layout, GREEDY)))
        runner.collect(runner.launch(release(rows)))


def _run_sequences(
    runner: Runner,
    config: WorkerConfig,
    layout: KVLayout,
    capacity: Capacity,
    params: SamplingParams,
    rows: int,
    length: int,
) -> None:
    """Admit, decode and release as many of `rows` sequences as fit."""
    held = capacity.num_blocks // layout.blocks_for(1)
    rows = min(rows, config.max_num_seqs, config.max_num_batched_tokens // length, held)
    if layout.blocks_for(length + 1) > capacity.num_blocks // rows:
        return
    runner.collect(runner.launch(plan([length] * rows, layout, params, room=1)))
    if length < capacity.max_model_len:
        runner.collect(runner.launch(plan([length] * rows, layout, params, decode=True)))
    runner.collect(runner.launch(release(rows)))
