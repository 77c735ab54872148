"""Ten times the load that an engine has places for: how fast the excess is refused, and what the others still get.

    python tests/bench/overload.py [--doors grpc http] [--cores 0 1]

An engine with a worker of fixed step time, on the first core; its clients on the second (--shared: both for both).
First as many streams as there are places, for the peak; then ten times as many, of which whoever is refused asks
again about a second later (--again). The figures are of the client: from sending a request to having read its refusal.
Answers differ in length, as they do anywhere: of equal ones a hundred would end in one step and a hundred others begin.
A client that has used up its core (`client_cpu`) says nothing about the engine.

* refusals: p99 at most 50 ms with a core each, 150 ms where both share all
* goodput: tokens/s of answers under the excess, at least 90 % of the peak

Prints what it finds and, last, one JSON object.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from quire.deploy.bench import control
from quire.deploy.bench.load.bench_processes import BenchProcesses, cpu_seconds
from quire.deploy.bench.load.grpc_channels import connect
from quire.deploy.bench.load.http_client import HttpClient, body_of
from quire.deploy.bench.load.prompts import Prompt
from quire.deploy.bench.load.request_record import OK, RequestRecord, request_of, stream
from quire.deploy.bench.report.report import commit, machine, percentiles

START_SECONDS = 600.0
SETTLE_SECONDS = 3.0
"""From the first request to the window that counts: the queue is full by then."""
REFUSED = ("RESOURCE_EXHAUSTED", "QUEUE_FULL")
SPREAD = (0.5, 1.5)
"""A refused stream waits so many times --again, at least and at most."""

Send = Callable[[Prompt], Awaitable[RequestRecord]]


# ---- the clients, in a process of their own


async def load(options: dict[str, Any]) -> dict[str, Any]:
    """Every stream asks until the window is over; figures of what ended in it."""
    records: list[RequestRecord] = []
    begin = time.monotonic() + SETTLE_SECONDS
    end = begin + options["seconds"]
    ids, mean = list(range(200, 232)), options["output_len"]
    spread = range(max(1, mean // 2), longest(mean) + 1)
    prompts = [Prompt(ids, length) for length in spread]

    async def one(send: Send) -> None:
        await asyncio.sleep(random.uniform(0, 1))
        while time.monotonic() < end:
            record = await send(random.choice(prompts))
            records.append(record)
            if record.status != OK:
                await asyncio.sleep(options["again"] * random.uniform(*SPREAD))

    if options["door"] == "http":
        client = HttpClient([options["target"]], {})
        bodies = {one: body_of(ids, one, 1.0, "", 0) for one in spread}
        streams = [
            asyncio.create_task(one(lambda prompt: client.stream(bodies[prompt.output_len])))
            for _ in range(options["streams"])
        ]
        await asyncio.sleep(end - time.monotonic())
    else:
        async with connect([options["target"]], options["streams"]) as stubs:
            asked = {prompt.output_len: request_of(prompt, 1.0, "", 0) for prompt in prompts}
            streams = [
                asyncio.create_task(one(lambda prompt: stream(next(stubs), asked[prompt.output_len])))
                for _ in range(options["streams"])
            ]
            await asyncio.sleep(end - time.monotonic())
    for task in streams:
        task.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    window = [record for record in records if record.sent >= begin and record.ended < end]
    refused = [record for record in window if record.status in REFUSED]
    done = [record for record in records if record.status == OK and begin <= record.ended < end]
    return {
        "refusals": len(refused),
        **percentiles("refusal_ms", [1e3 * (record.ended - record.sent) for record in refused] or [0.0], (50, 99)),
        **percentiles("ttft_ms", [1e3 * (one.moments[0] - one.sent) for one in done] or [0.0], (50, 99)),
        **percentiles("itl_ms", [1e3 * gap for one in done for gap in one.gaps] or [0.0], (50, 99)),
        "tokens_per_s": sum(record.num_tokens for record in done) / options["seconds"],
        "other": dict(Counter(one.status for one in window if one.status not in (OK, *REFUSED))),
        "client_cpu": time.process_time() / options["seconds"],
    }


# ---- the bench


def longest(mean_len: int) -> int:
    return mean_len + mean_len // 2


def cores(args: argparse.Namespace) -> tuple[set[int], set[int]]:
    """Of the engine, and of its clients."""
    if args.shared:
        return {0, 1}, {0, 1}
    engine, clients = args.cores
    return {engine}, {clients}


def measure(args: argparse.Namespace, door: str, targets: tuple[str, str], streams: int) -> dict[str, Any]:
    options = {
        "door": door,
        "target": targets[door == "http"],
        "streams": streams,
        "seconds": args.seconds,
        "output_len": args.output_len,
        "again": args.again,
    }
    command = [sys.executable, __file__, "--client", json.dumps(options)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=args.seconds + START_SECONDS,
        preexec_fn=lambda: os.sched_setaffinity(0, cores(args)[1]),
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(args: argparse.Namespace, door: str) -> dict[str, Any]:
    shape = argparse.Namespace(
        http=True,
        streams=args.places // 2,
        step_ms=args.step_ms,
        frontends=args.frontends,
        seed=0,
        prompt_len=32,
        output_len=longest(args.output_len),
    )
    rounds: list[dict[str, Any]] = []
    with BenchProcesses() as processes:
        os.sched_setaffinity(0, cores(args)[0])  # of the engine, too, which inherits it
        waiting = args.places - args.places // 2
        _, started, targets = control.start(
            processes, shape, processes.run_dir.path / "device.json", max_num_queued_reqs=waiting
        )
        processes.wait_for("engine ready", lambda: control.ready([grpc for grpc, _ in targets]), START_SECONDS)
        for _ in range(args.rounds):
            peak = measure(args, door, targets[0], args.places)
            before = {process.name: cpu_seconds(process.pid) for process in started}
            excess = measure(args, door, targets[0], args.streams)
            span = args.seconds + SETTLE_SECONDS
            excess["cpu"] = {
                process.name: (cpu_seconds(process.pid) - before[process.name]) / span for process in started
            }
            excess["peak_tokens_per_s"] = peak["tokens_per_s"]
            excess["goodput"] = excess["tokens_per_s"] / peak["tokens_per_s"]
            rounds.append(excess | {"peak_itl_ms_p99": peak["itl_ms_p99"], "load": os.getloadavg()[0]})
            print(f"{door}: {rounds[-1]}", flush=True)
        processes.stop()
    names = ("refusal_ms_p50", "refusal_ms_p99", "goodput", "itl_ms_p99", "peak_itl_ms_p99")
    return {name: statistics.median(one[name] for one in rounds) for name in names} | {"rounds": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--doors", nargs="+", choices=("grpc", "http"), default=["grpc", "http"])
    parser.add_argument("--cores", nargs=2, type=int, default=[0, 1], help="of the engine, and of its clients")
    parser.add_argument("--shared", action="store_true", help="instead of a core each, both for both")
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument(
        "--again", type=float, default=1.0, help="seconds until a refused stream asks again, on average"
    )
    parser.add_argument("--places", type=int, default=200, help="half of them run, half of them wait")
    parser.add_argument("--frontends", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each window")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--output-len", type=int, default=20)
    args = parser.parse_args()
    if args.client:
        print(json.dumps(asyncio.run(load(json.loads(args.client)))))
        return
    document: dict[str, Any] = {"bench": "overload", "machine": machine(), "commit": commit(), "config": vars(args)}
    for door in args.doors:
        document[door] = run(args, door)
        print(f"{door}: { ({name: value for name, value in document[door].items() if name != 'rounds'}) }", flush=True)
    print(json.dumps(document))


if __name__ == "__main__":
    main()
