"""The limits of the front door, each by one command, on a machine that does nothing else:

    python tests/bench/front_door.py [--only ttft tokenize-long http structured]

* ttft: from the arrival of a 1k-token prompt to its Submit, an otherwise idle frontend: p50 at most 2 ms
* tokenize-long: p99 inter-token time of 16 streams while a 100k-token prompt is prepared: at most 20 % more
* http: output tokens/s of `bench serve` over gRPC, divided by the same over HTTP: at most 1.15
* structured: what a JSON schema costs a step of 16 rows of the embedded model: at most 5 %

Prints what it finds and, last, one JSON object.
"""

import argparse
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lone_frontend

from quire.deploy.bench import control
from quire.deploy.bench.load.bench_processes import BenchProcesses
from quire.deploy.bench.report.report import commit, machine

PARTS = ("ttft", "tokenize-long", "http", "structured")
LIMITS = {"ttft": 2.0, "tokenize-long": 1.2, "http": 1.15, "structured": 0.05}
START_SECONDS = 600.0
RUN_SECONDS = 600.0


def command(*arguments: str) -> dict[str, Any]:
    """The JSON object on the last line of a program's output."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def ttft(args: argparse.Namespace) -> dict[str, Any]:
    figures = lone_frontend.ttft(args.requests, args.prompt_len, args.seed)
    kinds = [f"{door}_{kind}" for door in lone_frontend.DOORS for kind in ("text", "chat")]
    return figures | {"value": max(figures[f"{kind}_ms_p50"] for kind in kinds)}


def tokenize_long(args: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {
        door: lone_frontend.tokenize_long(
            door, args.seconds, args.streams, args.long_prompt_len, args.pace_ms, args.seed
        )
        for door in lone_frontend.DOORS
    }
    return figures | {"value": max(one["p99_ratio"] for one in figures.values())}


def http(args: argparse.Namespace) -> dict[str, Any]:
    """Real frontend and scheduler, a worker of fixed step time, and the two loads in turns."""
    shape = argparse.Namespace(
        http=True,
        streams=args.http_streams,
        step_ms=args.step_ms,
        frontends=1,
        seed=args.seed,
        prompt_len=32,
        output_len=args.output_len,
    )
    load = [
        "--num-prompts",
        str(args.http_streams * args.http_answers),
        "--concurrency",
        str(args.http_streams),
        "--input-len",
        "32",
        "--output-len",
        str(args.output_len),
        "--temperature",
        "1",
        "--seed",
        str(args.seed),
    ]
    rates: dict[str, list[float]] = {door: [] for door in lone_frontend.DOORS}
    with ThreadPoolExecutor(1) as pool, BenchProcesses() as processes:
        _, _, [(grpc, web)] = control.start(processes, shape, processes.run_dir.path / "device.json")
        processes.wait_for("engine ready", lambda: control.ready([grpc]), START_SECONDS)
        for number in range(args.rounds + 1):
            for door, flags in (("grpc", ["--target", grpc]), ("http", ["--http", "--target", web])):
                one = pool.submit(command, "-m", "quire.deploy", "bench", "serve", *flags, *load, "--json")
                processes.wait_for("bench serve", lambda one=one: one.done() or None, RUN_SECONDS)
                found = one.result()
                if found["errors"]:
                    raise RuntimeError(f"bench serve over {door}: {found['errors']}")
                if number:  # the first round warms up
                    rates[door].append(found["output_tokens_per_s"])
        processes.stop()
    # rounds stand side by side, so that what else the machine does weighs on both
    ratio = statistics.median(g / h for g, h in zip(rates["grpc"], rates["http"], strict=True))
    return {f"{door}_tokens_per_s": statistics.median(found) for door, found in rates.items()} | {"value": ratio}


def structured(args: argparse.Namespace) -> dict[str, Any]:
    program = str(Path(__file__).with_name("structured.py"))
    found = command(program, "--json", "--rows", "16", "--steps", str(args.steps), "--rounds", str(args.rounds))
    rates = {f"{name}_tokens_per_s": 1e6 * found["rows"] / found[f"{name}_us"] for name in ("free", "guided")}
    return rates | {"value": found["cost"]}


MEASURES = dict(zip(PARTS, (ttft, tokenize_long, http, structured), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--requests", type=int, default=300, help="ttft: requests of each kind over each door")
    parser.add_argument("--prompt-len", type=int, default=1024, help="ttft: tokens")
    parser.add_argument("--seconds", type=float, default=20.0, help="tokenize-long: for each door")
    parser.add_argument("--streams", type=int, default=16, help="tokenize-long: steady streams")
    parser.add_argument("--long-prompt-len", type=int, default=100_000, help="tokenize-long: tokens")
    parser.add_argument("--pace-ms", type=float, default=10.0, help="tokenize-long: between two tokens of a stream")
    parser.add_argument("--rounds", type=int, default=5, help="http, structured: both sides in turns, so often")
    parser.add_argument("--http-streams", type=int, default=128, help="http: requests at a time")
    parser.add_argument("--http-answers", type=int, default=4, help="http: answers of each in one round")
    parser.add_argument("--output-len", type=int, default=256, help="http: tokens of one answer")
    parser.add_argument("--step-ms", type=float, default=2.0, help="http: time of one step of the worker")
    parser.add_argument("--steps", type=int, default=200, help="structured: of one batch")
    args = parser.parse_args()
    document: dict[str, Any] = {
        "bench": "front_door",
        "machine": machine(),
        "commit": commit(),
        "seed": args.seed,
        "config": vars(args),
    }
    for part in args.only:
        found = MEASURES[part](args) | {"limit": LIMITS[part]}
        document[part] = found
        verdict = "within" if found["value"] <= found["limit"] else "MISSED:"
        print(f"{part}: {found['value']:.3g}, {verdict} the limit of {found['limit']:g}", flush=True)
        for name, value in found.items():
            print(f"    {name}: {value}", flush=True)
    print(json.dumps(document))


if __name__ == "__main__":
    main()
