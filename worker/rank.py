"""One rank of a worker group, from its command line to its end.

Exit codes: see `quire.proto.process.exit_codes`; the last log lines say why.
"""

import argparse
import contextlib
import signal
from pathlib import Path

import msgspec
import zmq

from quire.kernels.cpu.native import NativeLibraryMissingError
from quire.kernels.gpu.tile_table import TileTableError
from quire.proto.process import exit_codes
from quire.proto.process.flags import in_flags
from quire.proto.process.log_stream import begin_log
from quire.proto.process.process_exit import exit_now, exit_on
from quire.proto.transport.channel import Dealer
from quire.proto.transport.wire import plan_decoder
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device, DeviceError
from quire.worker.device.parallel import Groups
from quire.worker.loop import Started, StartRefused, Worker, identity
from quire.worker.memory.shortage import MemoryShortage, MemoryTaken, ran_out, shortage
from quire.worker.start import join_groups, start
from quire.worker.step.runner import InFlight
from quire.worker.weights.header import CheckpointError
from quire.worker.weights.parts import ModelError

REFUSALS = (ModelError, CheckpointError, DeviceError, MemoryShortage, NativeLibraryMissingError, TileTableError)
"""Errors that the user must mend, and no restart can."""

_LINGER_MS = 1000


def main() -> int:
    parser = argparse.ArgumentParser(prog="quire.worker", description="One rank of a worker group.")
    parser.add_argument("config", type=Path, help="WorkerConfig as JSON")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--epoch", type=int, required=True)
    arguments = parser.parse_args()
    config = msgspec.json.decode(arguments.config.read_bytes(), type=WorkerConfig)
    if not 0 <= arguments.rank < config.tensor_parallel_size:
        parser.error(f"--rank: must be in [0, {config.tensor_parallel_size}), got {arguments.rank}")
    return serve(config, arguments.rank, arguments.epoch)


def serve(config: WorkerConfig, rank: int, epoch: int) -> int:
    """Run one rank until it is stopped or fails; the exit code."""
    begin_log(config.log_level, f"%(asctime)s %(levelname)s worker rank={rank} epoch={epoch} %(message)s")
    # Ctrl-C reaches the whole terminal; the supervisor decides how the group ends
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_on(signal.SIGTERM, exit_codes.SUCCESS)

    def begin() -> Started[InFlight]:
        try:
            return load()
        except REFUSALS as error:
            if epoch > 1 and isinstance(error, MemoryTaken):
                # by the group before, perhaps, whose memory is on its way back: worth a restart
                raise MemoryTaken(in_flags(str(error), config.flags)) from error
            raise StartRefused(in_flags(str(error), config.flags)) from error

    def load() -> Started[InFlight]:
        try:
            device = Device(config.device, rank)
        except RuntimeError as error:
            if not ran_out(error):
                raise
            raise MemoryTaken("the device has no memory left to begin with; end what else uses it") from error

        def join() -> Groups:
            groups = join_groups(config, device, rank, epoch)
            at_end.callback(groups.close)
            return groups

        def explain(error: Exception) -> Exception:
            if not ran_out(error):
                return error
            return MemoryTaken(in_flags(str(shortage(error, device, "a step", "step")), config.flags))

        worker.explain = explain
        started = start(config, rank, device, join)
        at_end.callback(started.executor.close)
        return started

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = Dealer(context, config.scheduler_address, identity(rank, epoch), plan_decoder())
    at_end = contextlib.ExitStack()
    """Runs backwards: first the graphs go, which recorded collectives, then the group they belong to."""
    worker = Worker(dealer, rank, config.tensor_parallel_size, epoch)
    try:
        code = worker.run(begin)
        if code == exit_codes.SUCCESS:
            at_end.close()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it says nothing new, and must not cut the last words off
        dealer.close(_LINGER_MS)
        context.term()
    if code != exit_codes.SUCCESS:
        # a collective may never end on another rank, and what recorded it cannot be taken apart meanwhile
        exit_now(code)
    return code
