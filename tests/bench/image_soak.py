"""Ten thousand images, no two alike, through a tiny model that reads them: what every process holds meanwhile.

    python tests/bench/image_soak.py [--images 10000] [--looks 2000 6000 10000]

A real engine with a store for a few hundred of them, asked over both doors, so many requests at a time (--concurrency).
Every fiftieth file is cut short and refused. After so many images (--looks) the load pauses, and memory (`VmRSS`, and
`RssAnon`, which is the process's own), descriptors, threads and the files of the store are counted. Prints what it
finds and, last, one JSON object.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from peers.server import Server, free_port
from tiny_qwen3_vl import write_checkpoint

from quire.deploy.bench.load.api_clients import ApiClient, open_grpc, open_http
from quire.deploy.bench.load.images import ImageChat, photograph
from quire.deploy.bench.load.request_record import OK
from quire.deploy.bench.report.report import commit, machine

SIZE = (96, 64)
STORE_BYTES = 8 << 20
"""Room for about 300 of the decoded images."""
BROKEN_EVERY = 50
OUTPUT_LEN = 4
SETTLE_SECONDS = 3.0


def processes(supervisor: int) -> Iterator[tuple[str, int]]:
    """(module, pid) of the supervisor and of every process below it, parents first."""
    children: dict[int, list[int]] = {}
    for path in sorted(Path("/proc").glob("[0-9]*"), key=lambda one: int(one.name)):
        with contextlib.suppress(OSError):  # it ended while we looked
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(path.name))
    queue = [supervisor]
    for pid in queue:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        yield next((word.decode() for word in words if word.startswith(b"quire.")), "?"), pid
        queue += children.get(pid, [])


def look(supervisor: int, run_dir: Path) -> dict[str, Counter[str]]:
    """Sums over the processes of each module, and the files of the store."""
    found: dict[str, Counter[str]] = {}
    for module, pid in processes(supervisor):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        values = dict(line.split(":", 1) for line in lines if ":" in line)
        found.setdefault(module, Counter()).update(
            {
                "processes": 1,
                "rss_kib": int(values["VmRSS"].split()[0]),
                "anon_kib": int(values["RssAnon"].split()[0]),
                "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
                "threads": int(values["Threads"]),
            }
        )
    files = [path for path in (run_dir / "media").rglob("*") if path.is_file()]
    found["store"] = Counter({"files": len(files), "bytes": sum(path.stat().st_size for path in files)})
    return found


async def load(apis: list[ApiClient], first: int, count: int, width: int, seed: int) -> Counter[str]:
    """Ask about images `first` to `first + count`, and count the answers by status."""
    numbers = iter(range(first, first + count))
    answers: Counter[str] = Counter()

    async def client(api: ApiClient, send: Callable[[Any], Awaitable[Any]]) -> None:
        for number in numbers:
            image = photograph(*SIZE, np.random.default_rng((seed, number)))
            broken = number % BROKEN_EVERY == BROKEN_EVERY - 1
            chat = ImageChat("", "what do you see", (image[: len(image) // 2] if broken else image,))
            record = await send(api.request(chat, OUTPUT_LEN, 0.0, "", number))
            answers[("broken " if broken else "") + record.status] += 1

    clients = [apis[index % len(apis)] for index in range(width)]
    await asyncio.gather(*(client(api, api.send) for api in clients))
    return answers


async def soak(args: argparse.Namespace, server: Server, grpc: str, run_dir: Path, supervisor: int) -> dict[str, Any]:
    looks: dict[int, dict[str, Counter[str]]] = {}
    answers: Counter[str] = Counter()
    begun, done = time.monotonic(), 0
    target = f"127.0.0.1:{server.port}"
    async with open_grpc(grpc, "", args.concurrency) as first, open_http(target, "", args.concurrency) as second:
        for number in sorted({*args.looks, args.images}):
            answers += await load([first, second], done, number - done, args.concurrency, args.seed)
            done = number
            await asyncio.sleep(SETTLE_SECONDS)
            looks[number] = look(supervisor, run_dir)
            print(f"{number} images after {time.monotonic() - begun:.0f} s", flush=True)
    return {"seconds": time.monotonic() - begun, "answers": dict(answers), "looks": looks}


def show(looks: dict[int, dict[str, Counter[str]]]) -> None:
    """A line for each module and figure, a column for each look."""
    last = looks[max(looks)]
    print(f"{'':<52}" + "".join(f"{number:>12}" for number in looks))
    for module, figures in last.items():
        for figure in figures:
            counts = (one.get(module, Counter())[figure] for one in looks.values())
            print(f"{module + ' ' + figure:<52}" + "".join(f"{count:>12}" for count in counts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--looks", type=int, nargs="+", default=[2000, 6000, 10_000])
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    before = machine()
    with tempfile.TemporaryDirectory(prefix="quire-soak-") as folder:
        model, run_dir = Path(folder) / "model", Path(folder) / "run"
        model.mkdir()
        write_checkpoint(model)
        port, grpc_port = free_port(), free_port()
        command = [sys.executable, "-P", "-m", "quire.deploy", "serve", str(model), "--dtype", "float32"]
        command += ["--http-port", str(port), "--grpc-port", str(grpc_port), "--run-dir", str(run_dir)]
        command += ["--media-store-bytes", str(STORE_BYTES), "--kv-cache-memory-bytes", "16MiB", "--num-threads", "1"]
        server = Server("quire", "float32", port, command)
        with server.running(Path(folder) / "log"):
            # who holds the directory
            supervisor = int((run_dir / "lock").read_text().split()[0])
            found = asyncio.run(soak(args, server, f"127.0.0.1:{grpc_port}", run_dir, supervisor))
        show(found["looks"])
    answers = found["answers"]
    wrong = {status: count for status, count in answers.items() if status.startswith("broken") == status.endswith(OK)}
    print(f"answers: {answers}")
    print(json.dumps({"machine": before, "commit": commit(), **found}))
    if wrong:
        raise SystemExit(f"not as they should be: {wrong}")


if __name__ == "__main__":
    main()
