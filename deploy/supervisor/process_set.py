"""The processes of one engine: started, watched and stopped together."""

import time
from collections.abc import Callable, Iterator

import zmq

from quire.deploy.supervisor.process import ProcessRole, SupervisedProcess

STOP_ORDER: tuple[ProcessRole, ...] = ("frontend", "scheduler", "worker")
"""Roles in the order of their SIGTERM: first those that hold clients, last those that hold nothing of anybody's."""


class ProcessSet:
    """Processes by name. One that `kill` ended is not reported by `reap`."""

    def __init__(self, relay: Callable[[str], None]) -> None:
        self._relay = relay
        self._living: dict[str, SupervisedProcess] = {}

    def start(self, role: ProcessRole, index: int, command: list[str]) -> SupervisedProcess:
        process = SupervisedProcess(role, index, command, self._relay)
        self._living[process.name] = process
        return process

    def get(self, name: str) -> SupervisedProcess | None:
        """The process of that name that has not been reaped; None: there is none."""
        return self._living.get(name)

    def with_role(self, role: ProcessRole) -> list[SupervisedProcess]:
        return [process for process in self._living.values() if process.role == role]

    def wait(self, sockets: list["zmq.Socket[bytes]"], timeout_seconds: float) -> None:
        """Wait for a log line, a death, a message or the timeout; then relay the lines."""
        poller = zmq.Poller()
        for socket in sockets:
            poller.register(socket, zmq.POLLIN)
        for process in self._living.values():
            for descriptor in process.descriptors:
                poller.register(descriptor, zmq.POLLIN)
        poller.poll(int(timeout_seconds * 1000))
        for process in self._living.values():
            process.relay_log()

    def reap(self) -> Iterator[SupervisedProcess]:
        """Every process that has ended since the last call, its last words relayed."""
        for process in list(self._living.values()):
            # an earlier one's death may have made the caller end this one meanwhile
            if process.name in self._living and process.exit_code is not None:
                self._remove(process)
                yield process

    def kill(self, role: ProcessRole) -> None:
        """SIGKILL to all of a role, now: a group is one failure unit."""
        for process in self.with_role(role):
            process.kill()
            self._remove(process)

    def stop(self, grace_seconds: float, tier_seconds: float, kill_now: Callable[[], bool]) -> None:
        """SIGTERM in `STOP_ORDER`, a tier once the one before has left or had `tier_seconds`; SIGKILL to the rest."""
        deadline = time.monotonic() + grace_seconds
        for role in STOP_ORDER:
            for process in self.with_role(role):
                process.terminate()
            last = role == STOP_ORDER[-1]
            tier_end = deadline if last else min(deadline, time.monotonic() + tier_seconds)
            while (self._living if last else self.with_role(role)) and time.monotonic() < tier_end and not kill_now():
                self.wait([], 0.05)
                for _ in self.reap():
                    continue
        for role in STOP_ORDER:
            self.kill(role)

    def _remove(self, process: SupervisedProcess) -> None:
        del self._living[process.name]
        process.close()
