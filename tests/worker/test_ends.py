"""How a rank ends: what it lets go of in which order, and that a rank which waits for a dead one ends all the same."""

import signal
import time

import pytest
from parts.clock import GUARD

from quire.proto.messages.plans import Welcomed

pytestmark = pytest.mark.integration


def halted(workers, rank):
    """The rank answers nothing any more, and is not dead either: what waits for it waits without end."""
    workers.processes[rank].send_signal(signal.SIGSTOP)


def test_a_signal_ends_a_rank_that_waits_in_a_collective(group, scribe):
    """It was deaf: a handler in Python runs between two instructions of the main thread, which was inside the call."""
    workers = group(2)
    workers.join()
    halted(workers, 1)
    writer = scribe(8)
    writer.admit(0, list(range(40, 61)))
    workers.send(writer.plan([(0, 21)])[1])
    time.sleep(0.5)  # for the step to begin; if it has not, this proves less
    workers.processes[0].send_signal(signal.SIGTERM)
    assert workers.processes[0].wait(GUARD) == 0


def test_a_signal_ends_a_rank_that_waits_for_another_to_join(group):
    workers = group(2)
    workers.hello()
    halted(workers, 1)
    for identity in workers.identities.values():
        workers.router.send(identity, Welcomed(1))
    time.sleep(0.5)
    workers.processes[0].send_signal(signal.SIGTERM)
    assert workers.processes[0].wait(GUARD) == 0


def test_a_rank_whose_neighbour_dies_fails_and_leaves(group, scribe):
    workers = group(2)
    workers.join()
    workers.processes[1].kill()
    writer = scribe(8)
    writer.admit(0, list(range(40, 61)))
    workers.send(writer.plan([(0, 21)])[1])
    assert "peer" in workers.failure().reason
    assert workers.processes[0].wait(GUARD) == 4
