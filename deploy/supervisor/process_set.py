"""The processes of one engine, by name."""

from collections.abc import Callable, Iterator

from quire.deploy.supervisor.process import ProcessRole, SupervisedProcess


class ProcessSet:
    """Processes by name. One that `kill` ended is not reported by `reap`."""

    def __init__(self, relay: Callable[[str], None]) -> None:
        self._relay = relay
        self._living: dict[str, SupervisedProcess] = {}

    def start(self, role: ProcessRole, index: int, command: list[str]) -> SupervisedProcess:
        process = SupervisedProcess(role, index, command, self._relay)
        self._living[process.name] = process
        return process

    @property
    def roles(self) -> set[ProcessRole]:
        """Roles of the processes that have not been reaped."""
        return {process.role for process in self._living.values()}

    @property
    def pids(self) -> set[int]:
        """Ids of the processes that have not been reaped."""
        return {process.pid for process in self._living.values()}

    def descriptors(self) -> Iterator[int]:
        """Readable when a process has written a log line or has ended."""
        for process in self._living.values():
            yield from process.descriptors

    def relay_logs(self) -> None:
        """Pass on what has arrived."""
        for process in self._living.values():
            process.relay_log()

    def reap(self) -> Iterator[SupervisedProcess]:
        """Every process that has ended since the last call, its last words relayed."""
        for process in list(self._living.values()):
            # an earlier one's death may have made the caller end this one meanwhile
            if process.name in self._living and process.exit_code is not None:
                self._remove(process)
                yield process

    def terminate(self, role: ProcessRole) -> None:
        """SIGTERM to all of a role: they may finish what they do."""
        for process in self._with_role(role):
            process.terminate()

    def kill(self, role: ProcessRole) -> None:
        """SIGKILL to all of a role, now: a group is one failure unit."""
        for process in self._with_role(role):
            process.kill()
            self._remove(process)

    def kill_one(self, role: ProcessRole, index: int) -> None:
        """SIGKILL to one process; `reap` reports it."""
        for process in self._with_role(role):
            if process.index == index:
                process.kill()

    def _with_role(self, role: ProcessRole) -> list[SupervisedProcess]:
        return [process for process in self._living.values() if process.role == role]

    def _remove(self, process: SupervisedProcess) -> None:
        del self._living[process.name]
        process.close()
