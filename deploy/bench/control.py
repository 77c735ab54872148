"""`quire bench control`: the control plane alone, at full speed.

Real frontends, the real scheduler and clients of gRPC or HTTP, around a worker that computes nothing and takes a fixed
time for every step (`quire.worker.bench.fixed_time_worker`). All processes share this machine's cores, the clients too.
Beside the steady streams, newcomers ask for one token each, one after another, from a process and a connection of their
own: how long a new stream waits while all others run.
"""

import argparse
import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc

from quire.deploy.bench.load.bench_processes import BenchProcesses, cpu_seconds
from quire.deploy.bench.load.control_outcome import outcome
from quire.deploy.bench.report.errors import BenchError
from quire.deploy.bench.report.measuring_process import measure
from quire.deploy.bench.report.report import Outcome
from quire.deploy.commands.serve import QuireEngine
from quire.deploy.config import WORKERS_SOCKET, compose
from quire.deploy.flags.options import ServeOptions
from quire.deploy.model_path import resolve
from quire.deploy.supervisor.process import SupervisedProcess
from quire.proto.generated import quire_pb2, quire_pb2_grpc

START_SECONDS = 120.0
BLOCK_SIZE = 16
STREAMS = "quire.deploy.bench.load.streams"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--http", action="store_true", help="clients use the HTTP API in place of gRPC")
    parser.add_argument("--streams", type=int, default=256, help="streams open at a time")
    parser.add_argument("--step-ms", type=float, default=5.0, help="time of one step of the worker")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of the window that counts")
    parser.add_argument("--warmup", type=float, default=5.0, help="seconds before it, for clients to start and connect")
    parser.add_argument("--frontends", type=int, default=1, help="frontend processes")
    parser.add_argument("--clients", type=int, default=1, help="client processes that share the streams")
    parser.add_argument("--prompt-len", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=512, help="tokens of one answer; a stream then asks again")


def run(args: argparse.Namespace) -> Outcome:
    _check(args)
    # the pool is the outer one: when the engine dies, its end is what lets waiting clients end
    with ThreadPoolExecutor(args.clients + 1) as pool, BenchProcesses() as processes:
        device_file = processes.run_dir.path / "device.json"
        vocabulary, started, targets = start(processes, args, device_file)
        processes.wait_for("engine ready", lambda: ready([grpc for grpc, _ in targets]), START_SECONDS)
        begin = time.monotonic() + args.warmup
        window = (begin, begin + args.seconds)
        options = _options(args, vocabulary, targets, window)
        clients = _start_clients(pool, args, options)
        newcomers = _start_newcomers(pool, args, options)
        before, after = (_cpu_at(processes, moment, started) for moment in window)
        read = _collect(processes, [*clients, newcomers], args)
        processes.stop()
        device = json.loads(device_file.read_text())
    cpu = {name: after[name] - before[name] for name in before}
    cpu |= {f"client {index}": float(str(client["cpu_seconds"])) for index, client in enumerate(read[:-1])}
    return outcome(args, read[:-1], read[-1], device, cpu, window)


def _check(args: argparse.Namespace) -> None:
    for option in ("streams", "frontends", "clients", "prompt_len", "output_len"):
        if getattr(args, option) < 1:
            raise BenchError(f"--{option.replace('_', '-')}: must be at least 1, got {getattr(args, option)}")
    if args.clients > args.streams:
        raise BenchError(f"--clients: {args.clients} processes for {args.streams} streams; use fewer")
    if args.seconds <= 0 or args.step_ms < 0 or args.warmup < 0:
        raise BenchError("--seconds must be positive, --step-ms and --warmup must not be negative")


def start(
    processes: BenchProcesses, args: argparse.Namespace, device_file: Path, **changes: int
) -> tuple[range, list[SupervisedProcess], list[tuple[str, str]]]:
    """Ordinary token ids of the embedded model, the processes, and each frontend's gRPC and HTTP target.

    `changes`: options of the engine that are not the bench's.
    """
    options = ServeOptions(
        grpc_port=0,
        http_port=0 if args.http else -1,
        max_num_seqs=args.streams + 1,  # a newcomer beside them
        max_num_batched_tokens=max(2048, 2 * args.streams),
        log_level="warning",
        frontends=args.frontends,
    )
    options = replace(options, **changes)  # type: ignore[arg-type]
    model = resolve("", options.load_format, processes.run_dir.path)
    special = json.loads((model.directory / "tokenizer.json").read_text())["added_tokens"]
    vocab_size = json.loads((model.directory / "config.json").read_text())["vocab_size"]
    vocabulary = range(max((int(token["id"]) for token in special), default=-1) + 1, vocab_size)
    engine = QuireEngine(compose(options, model, processes.run_dir), processes.run_dir)
    longest = args.prompt_len + args.output_len + 1
    worker: dict[str, object] = {
        "scheduler_address": processes.run_dir.address(WORKERS_SOCKET),
        "report_file": str(device_file),
        "step_ms": args.step_ms,
        "vocab_size": vocab_size,
        "eos_token_ids": list(range(vocabulary.start)),
        "max_model_len": longest,
        "num_blocks": (args.streams + 8) * (longest // BLOCK_SIZE + 2),
        "block_size": BLOCK_SIZE,
        "seed": args.seed,
    }
    started = [
        processes.start("scheduler", 0, engine.scheduler_command()),
        processes.start_module("worker", "quire.worker.bench.fixed_time_worker", worker),
        *(processes.start("frontend", index, engine.frontend_command(index)) for index in range(args.frontends)),
    ]
    ports = processes.wait_for("frontend ports", lambda: _ports(engine, args.frontends), START_SECONDS)
    return vocabulary, started, [(f"127.0.0.1:{grpc}", f"127.0.0.1:{http}") for grpc, http in ports]


def _ports(engine: QuireEngine, num_frontends: int) -> list[tuple[int, int]] | None:
    """For gRPC and HTTP; None until every frontend has said which are its own."""
    try:
        reported = [json.loads(engine.ready_file(index).read_text()) for index in range(num_frontends)]
        return [(ports["grpc_port"], ports["http_port"]) for ports in reported]
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def ready(targets: list[str]) -> bool | None:
    """True when every frontend says so, else None."""
    for target in targets:
        with grpc.insecure_channel(target) as channel:
            try:
                control = quire_pb2_grpc.ControlStub(channel)  # type: ignore[no-untyped-call]
                info = control.GetServerInfo(quire_pb2.GetServerInfoRequest(), timeout=5)
            except grpc.RpcError:
                return None
            if info.state != "ready":
                return None
    return True


def _start_clients(
    pool: ThreadPoolExecutor, args: argparse.Namespace, options: dict[str, object]
) -> list["Future[dict[str, object]]"]:
    """The steady streams, shared by `args.clients` processes."""
    return [
        pool.submit(
            measure,
            STREAMS,
            {**options, "streams": (args.streams + index) // args.clients, "seed": args.seed + index},
        )
        for index in range(args.clients)
    ]


def _start_newcomers(
    pool: ThreadPoolExecutor, args: argparse.Namespace, options: dict[str, object]
) -> "Future[dict[str, object]]":
    """One stream of one token at a time: each is a new one."""
    return pool.submit(measure, STREAMS, {**options, "streams": 1, "output_len": 1, "seed": args.seed + args.clients})


def _options(
    args: argparse.Namespace, vocabulary: range, targets: list[tuple[str, str]], window: tuple[float, float]
) -> dict[str, object]:
    """Options of a client process, but for its share of the streams."""
    return {
        "targets": [http if args.http else grpc for grpc, http in targets],
        "http": args.http,
        "prompt_len": args.prompt_len,
        "output_len": args.output_len,
        "first_token": vocabulary.start,
        "vocab_size": vocabulary.stop,
        "begin": window[0],
        "end": window[1],
    }


def _cpu_at(processes: BenchProcesses, moment: float, started: list[SupervisedProcess]) -> dict[str, float]:
    wait = max(0.0, moment - time.monotonic())
    processes.wait_for("the window", lambda: time.monotonic() >= moment or None, wait + 5.0)
    return {process.name: cpu_seconds(process.pid) for process in started}


def _collect(
    processes: BenchProcesses, clients: list["Future[dict[str, object]]"], args: argparse.Namespace
) -> list[dict[str, object]]:
    drain = 60.0 + 10 * args.output_len * args.step_ms / 1e3
    processes.wait_for("the last answers", lambda: all(client.done() for client in clients) or None, drain)
    return [client.result() for client in clients]
