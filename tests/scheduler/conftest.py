"""A core that is stepped by hand, and a loop with peers on real sockets."""

import gc
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from parts.clock import GUARD

from quire.scheduler.config import SchedulerConfig
from quire.scheduler.loop import SchedulerLoop

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from loop_peers import Peers
from stepped_core import FACTS, Engine


@pytest.fixture
def engine():
    """Makes engines: `engine(max_num_seqs=2)`, `engine(facts=..., ready=False)`."""
    return Engine


@pytest.fixture
def facts():
    return FACTS


@pytest.fixture
def peers(request, tmp_path, monkeypatch) -> Iterator[Peers]:
    """Indirect parameters are further fields of the configuration."""
    monkeypatch.setattr(gc, "unfreeze", lambda: None)  # a scheduler of its own process has no test run to walk through
    peers = Peers(str(tmp_path))
    config = SchedulerConfig(
        frontends_address=peers.frontends_address,
        workers_address=peers.workers_address,
        max_num_seqs=8,
        max_num_batched_tokens=32,
        audit_interval_steps=1,
        **{"frontend_lease_seconds": GUARD, "step_timeout_seconds": GUARD, **getattr(request, "param", {})},
    )
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    peers.loop = loop = SchedulerLoop(config, context)
    thread = threading.Thread(target=loop.run)
    thread.start()
    yield peers
    loop.stop()
    thread.join()
    peers.close()
    context.term()
    gc.enable()
