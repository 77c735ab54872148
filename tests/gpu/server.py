"""A whole server (scheduler, worker and frontends, without a supervisor), and `quire bench serve` against it."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import chip

from quire.deploy.bench.control import ready
from quire.deploy.bench.load.bench_processes import BenchProcesses
from quire.deploy.bench.report.errors import BenchError
from quire.deploy.commands.serve import QuireEngine
from quire.deploy.config import compose
from quire.deploy.flags.options import ServeOptions
from quire.deploy.model_path import resolve
from quire.deploy.supervisor.port_claim import PortClaim


class Server:
    """Processes that are ready."""

    def __init__(self, processes: BenchProcesses, target: str, ready_seconds: float) -> None:
        self._processes = processes
        self._target = target
        self.ready_seconds = ready_seconds

    def load(self, arguments: Sequence[str], seconds: float) -> dict[str, Any]:
        """What `quire bench serve` prints. Raises `BenchError` where it fails, is late, or a process of the server
        dies."""
        out, words = (self._processes.run_dir.path / f"load.{kind}" for kind in ("out", "err"))
        command = [sys.executable, "-P", "-m", "quire.deploy", "bench", "serve", "--target", self._target, "--json"]
        with out.open("wb") as stdout, words.open("wb") as stderr:
            client = subprocess.Popen([*command, *arguments], stdout=stdout, stderr=stderr)
            try:
                status = self._processes.wait_for("the load", client.poll, chip.patience() * seconds)
            finally:
                client.kill()
                client.wait()
        if status:
            raise BenchError(f"quire bench serve ended with status {status}: {words.read_text()[-2000:]}")
        found: dict[str, Any] = json.loads(out.read_text().splitlines()[-1])
        return found


@contextlib.contextmanager
def server(folder: Path, seconds: float, **options: Any) -> Iterator[Server]:
    """`options` of `quire serve`; ready within `seconds`, of a GPU."""
    begun, seconds = time.monotonic(), chip.patience() * seconds
    with contextlib.closing(PortClaim("127.0.0.1", 0)) as port, BenchProcesses() as processes:
        chosen = ServeOptions(
            load_format="dummy", startup_timeout=seconds, grpc_port=port.number, http_port=-1, log_level="warning",
            **options,
        )  # fmt: skip
        model = resolve(str(folder), "dummy", processes.run_dir.path)
        engine = QuireEngine(compose(chosen, model, processes.run_dir), processes.run_dir)
        processes.start("scheduler", 0, engine.scheduler_command())
        processes.start("worker", 0, engine.worker_command(0, 1))
        for index in range(engine.num_frontends):
            processes.start("frontend", index, engine.frontend_command(index))
        target = f"127.0.0.1:{port.number}"
        processes.wait_for("frontends ready", lambda: _ready(engine, target), seconds)
        yield Server(processes, target, time.monotonic() - begun)
        processes.stop()


def _ready(engine: QuireEngine, target: str) -> bool | None:
    all_ready = all(engine.frontend_ready(index) for index in range(engine.num_frontends))
    return ready([target]) if all_ready else None
