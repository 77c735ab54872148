"""The real supervisor over stand-in processes: `supervise.py DIRECTORY...`, settings in DIRECTORY/settings.json.

Several directories are several engines in one loop: a stand-in for several models in one deployment, which brings the
command line for it.
"""

import errno
import json
import sys
from pathlib import Path

from quire.deploy.supervisor.engine_spec import Timers
from quire.deploy.supervisor.supervised_engine import SupervisedEngine
from quire.deploy.supervisor.supervisor import Supervisor
from quire.proto.messages.requests import Welcome
from quire.proto.transport.channel import ipc_address

HERE = Path(__file__).parent


class StandInEngine:
    def __init__(self, directory: Path, settings: dict[str, int]) -> None:
        self.directory = directory
        self.world_size = settings.get("world_size", 2)
        self.num_frontends = settings.get("num_frontends", 1)

    def _command(self, kind: str, *arguments: object) -> list[str]:
        return [sys.executable, str(HERE / f"{kind}.py"), str(self.directory), *map(str, arguments)]

    def _need_room(self) -> None:
        if (self.directory / "full").exists():
            raise OSError(errno.ENOSPC, "No space left on device")

    def scheduler_command(self) -> list[str]:
        self._need_room()
        (self.directory / "frontends.sock").unlink(missing_ok=True)
        (self.directory / "workers.sock").unlink(missing_ok=True)
        return self._command("scheduler", self.world_size)

    def worker_command(self, rank: int, epoch: int) -> list[str]:
        self._need_room()
        return self._command("worker", rank, epoch, self.world_size)

    def frontend_command(self, index: int) -> list[str]:
        self._need_room()
        (self.directory / f"frontend-{index}.ready").unlink(missing_ok=True)
        return self._command("frontend", index)

    def frontend_ready(self, index: int) -> bool:
        return (self.directory / f"frontend-{index}.ready").exists()

    def frontend_heartbeat(self, index: int) -> int:
        path = self.directory / f"frontend-{index}.ready"
        return path.stat().st_mtime_ns if path.exists() else 0

    def supervisor_address(self) -> str:
        return ipc_address(str(self.directory), "frontends")


def engine_of(directory: Path) -> SupervisedEngine:
    settings = json.loads((directory / "settings.json").read_text())
    timers = Timers(**settings.get("timers", {}))

    def log(line: str) -> None:
        print(f"{settings.get('name', '')}{line}", flush=True)

    def on_ready(welcome: Welcome) -> None:
        with (directory / "journal").open("a") as journal:
            journal.write(f"ready supervisor {welcome.epoch}\n")

    return SupervisedEngine(StandInEngine(directory, settings), timers, log, log, on_ready)


def main() -> int:
    return Supervisor([engine_of(Path(directory)) for directory in sys.argv[1:]]).run()


if __name__ == "__main__":
    sys.exit(main())
