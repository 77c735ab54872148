"""Plans a worker runs before it is ready: the worst step, to measure memory, and a small one, to find faults early."""

from quire.proto.params import SamplingParams
from quire.proto.plans import Admit, StepPlan
from quire.proto.wire import ints
from quire.worker.config import WorkerConfig
from quire.worker.runner import Runner

EVERY_STAGE = SamplingParams(
    top_p=0.9, top_k=50, min_p=0.01, repetition_penalty=1.1, logit_bias=((0, 1.0),), logprobs=20
)


def plan(
    lengths: list[int], block_size: int, params: SamplingParams, *, decode: bool = False, room: int = 0
) -> StepPlan:
    """A step that runs whole sequences of these lengths in slots 0, 1, ..., or their next tokens if `decode`.

    `room`: further tokens for which the tables hold blocks.
    """
    rows = len(lengths)
    if decode:
        return StepPlan(0, 0, b"", ints(range(rows)), ints([1] * rows), b"\1" * rows)
    admits, next_block = [], 0
    for slot, length in enumerate(lengths):
        num_blocks = -(-(length + room) // block_size)
        admits.append(
            Admit(slot, bytes(4 * length), length, 0, 0, params, ints(range(next_block, next_block + num_blocks)))
        )
        next_block += num_blocks
    return StepPlan(0, 0, b"", ints(range(rows)), ints(lengths), b"\1" * rows, admits=tuple(admits))


def release(num_slots: int) -> StepPlan:
    return StepPlan(0, 0, b"", b"", b"", b"", releases=ints(range(num_slots)))


def worst_lengths(config: WorkerConfig) -> list[int]:
    """The most tokens and the most rows one step may have, together."""
    rows = min(config.max_num_seqs, config.max_num_batched_tokens)
    return [config.max_num_batched_tokens // rows] * rows


def run_worst(runner: Runner, config: WorkerConfig) -> None:
    """One step of the worst shape with every stage of sampling that needs memory. Its tables are thrown away."""
    runner.collect(runner.launch(plan(worst_lengths(config), config.block_size, EVERY_STAGE)))


def warm_up(runner: Runner, config: WorkerConfig, max_model_len: int) -> None:
    """A prefill and a decode step of one short sequence, greedy and then with every stage of sampling.

    What a request needs is compiled afterwards, and nothing of the sequence remains in the tables.
    """
    length = max(1, min(8, max_model_len - 1, config.max_num_batched_tokens))
    for params in (SamplingParams(temperature=0.0), EVERY_STAGE):
        runner.collect(runner.launch(plan([length], config.block_size, params, room=1)))
        if length < max_model_len:
            runner.collect(runner.launch(plan([length], config.block_size, params, decode=True)))
        runner.collect(runner.launch(release(1)))
