"""The processes of one engine: started, watched and stopped together."""

import time
from collections.abc import Callable, Iterator

import zmq

from quire.deploy.supervisor.process import Child, Role

STOP_ORDER: tuple[Role, ...] = ("frontend", "scheduler", "worker")
"""First those who hold clients, last those who hold nothing of anybody's."""


class Children:
    """Keyed by name. `end` makes a child a stranger: its death is not reported any more."""

    def __init__(self, relay: Callable[[str], None]) -> None:
        self._relay = relay
        self._living: dict[str, Child] = {}

    def start(self, role: Role, index: int, command: list[str]) -> Child:
        child = Child(role, index, command, self._relay)
        self._living[child.name] = child
        return child

    def of(self, role: Role) -> list[Child]:
        return [child for child in self._living.values() if child.role == role]

    def wait(self, sockets: list["zmq.Socket[bytes]"], timeout_seconds: float) -> None:
        """Until a log line, a death, a message or the timeout; then relay the lines."""
        poller = zmq.Poller()
        for socket in sockets:
            poller.register(socket, zmq.POLLIN)
        for child in self._living.values():
            for descriptor in child.descriptors:
                poller.register(descriptor, zmq.POLLIN)
        poller.poll(int(timeout_seconds * 1000))
        for child in self._living.values():
            child.relay_log()

    def reap(self) -> Iterator[Child]:
        """Every child that has ended since the last call, its last words relayed."""
        for child in list(self._living.values()):
            # an earlier one's death may have made the caller end this one meanwhile
            if child.name in self._living and child.exit_code is not None:
                self._forget(child)
                yield child

    def end(self, role: Role) -> None:
        """SIGKILL to all of a role, now: a group is one failure unit."""
        for child in self.of(role):
            child.kill()
            self._forget(child)

    def stop(self, grace_seconds: float, tier_seconds: float, kill_now: Callable[[], bool]) -> None:
        """SIGTERM in `STOP_ORDER`, a tier once the one before has left or had `tier_seconds`; SIGKILL to the rest."""
        deadline = time.monotonic() + grace_seconds
        for role in STOP_ORDER:
            for child in self.of(role):
                child.terminate()
            last = role == STOP_ORDER[-1]
            tier_end = deadline if last else min(deadline, time.monotonic() + tier_seconds)
            while (self._living if last else self.of(role)) and time.monotonic() < tier_end and not kill_now():
                self.wait([], 0.05)
                for _ in self.reap():
                    continue
        for role in STOP_ORDER:
            self.end(role)

    def _forget(self, child: Child) -> None:
        del self._living[child.name]
        child.close()
