"""`python -P fork_server.py DESCRIPTOR PADDING`: forks the processes that `forked.py` asks for on that socket.

It imports what an engine's processes import, and computes nothing: a thread of a pool, or a socket's, would be missing
in what it forks. It ends when the socket does, and whoever still lives of its children is killed.
"""

import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

PID = struct.Struct("<i")
END = struct.Struct("<id")
MODULES = [
    "torch",
    "torch.fx.experimental.symbolic_shapes",  # what torch imports for its first tensor without values
    "quire.deploy.commands.serve",
    "quire.scheduler.loop",
    "quire.frontend.server",
    "quire.worker.rank",
    "quire.proto.process.uncollected",
    "uvicorn.lifespan.off",
]
PACKAGES = ["quire.kernels.cpu"]
"""Whose modules are all imported, as processes import some of them late."""


class Child:
    """A process it has started, and the connection on which its end is told."""

    def __init__(self, pid: int, told: socket.socket) -> None:
        self.pid, self.told = pid, told
        self.descriptor = os.pidfd_open(pid)
        told.sendall(PID.pack(pid))

    def end(self) -> None:
        _, status, usage = os.wait4(self.pid, 0)
        os.close(self.descriptor)
        with suppress(OSError):  # nobody asks any more
            self.told.sendall(END.pack(status, usage.ru_utime + usage.ru_stime))
        self.told.close()


def started(message: list[int]) -> Child:
    """Fork a process by the request that came with these descriptors."""
    from parts.becoming import become, fork

    from quire.proto.process.parent_death import tie_to_parent

    told, payload, *streams = message
    request = json.loads(os.pread(payload, os.fstat(payload).st_size, 0))
    for module in request.pop("imports"):
        if module not in sys.modules:
            imported([module])
    pid = fork()
    if not pid:
        tie_to_parent()
        become(request.pop("command"), request.pop("environment"), streams, **request)
    for descriptor in (payload, *streams):
        os.close(descriptor)
    return Child(pid, socket.socket(fileno=told))


def imported(modules: list[str], packages: Sequence[str] = ()) -> None:
    for name in packages:
        inside = pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}.")
        modules = [*modules, *(one.name for one in inside if not one.name.rpartition(".")[2].startswith("native_"))]
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    assert len(names) == 1, f"importing {modules} began threads: {names}"


def serve(control: socket.socket) -> None:
    """Until the other end is closed."""
    children: dict[int, Child] = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    try:
        while True:
            for descriptor, _ in poll.poll():
                if descriptor != control.fileno():
                    poll.unregister(descriptor)
                    children.pop(descriptor).end()
                    continue
                asked, descriptors, _, _ = socket.recv_fds(control, 1, 8)
                if not asked:
                    return
                child = started(descriptors)
                children[child.descriptor] = child
                poll.register(child.descriptor, select.POLLIN)
    finally:
        for child in children.values():
            os.kill(child.pid, signal.SIGKILL)


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from parts import becoming  # while the path is as its interpreter made it, but for the folder above

    becoming.SITE_PATH.remove(sys.path[0])
    from quire.proto.process.parent_death import tie_to_parent

    tie_to_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the test run, and that ends this
    gc.disable()
    imported(MODULES, PACKAGES)
    serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
