"""`python -m quire.scheduler CONFIG.json`: one per engine."""

import signal
import sys
from pathlib import Path

import msgspec
import zmq

from quire.proto.process import exit_codes
from quire.proto.process.log_stream import begin_log
from quire.proto.process.parent_death import tie_to_parent
from quire.proto.process.process_exit import exit_after
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.loop import SchedulerLoop


def main() -> int:
    tie_to_parent()
    config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=SchedulerConfig)
    begin_log(config.log_level, "%(asctime)s %(levelname)s %(name)s %(message)s")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    loop = SchedulerLoop(config, context)
    signal.signal(signal.SIGTERM, lambda *_: loop.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor turns it into a drain
    loop.run()
    context.term()
    return exit_codes.SUCCESS


if __name__ == "__main__":
    exit_after(main)
