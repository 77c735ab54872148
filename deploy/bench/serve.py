"""`quire bench serve`: a load generator against a running server, over gRPC or HTTP.

Over HTTP any server of OpenAI's completions will do that takes token ids as a prompt, as those of vLLM and llama.cpp.

`--concurrency` keeps so many requests under way (a closed loop); `--rate` sends them as a Poisson process whatever the
server does (an open loop, which alone shows overload); `--cameras` sends a frame of each camera at an interval. Every
request generates exactly its output length. With `--images` a request is a chat about images of its own: JPEG files
that are made before the clock starts, as data: URLs over HTTP and as bytes over gRPC.

`--slo` prints the share of requests within a service level; `--sweep` runs again and again, with other requests, for
the highest rate, or the most cameras, of which 99 % are.
"""

import argparse
import asyncio
import itertools
from pathlib import Path

from quire.deploy.bench.load import workload
from quire.deploy.bench.load.api_clients import Server, open_grpc, open_http
from quire.deploy.bench.load.cameras import camera_figures
from quire.deploy.bench.load.request_record import RequestRecord, first_token_ms, summarize
from quire.deploy.bench.load.service_level import ServiceLevel, read_service_level
from quire.deploy.bench.load.sweep import Sweep
from quire.deploy.bench.report.errors import BenchError
from quire.deploy.bench.report.report import Figure, Outcome
from quire.deploy.commands.target import checked

GRPC_TARGET = "127.0.0.1:50051"
HTTP_TARGET = "127.0.0.1:8000"
REPORTED = (
    "concurrency", "rate", "cameras", "interval", "frames", "num_prompts", "input_len", "output_len", "shared_prefix",
    "images", "image_size", "preset", "slo", "sweep", "temperature", "text",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--http", action="store_true", help="over HTTP: streamed /v1/completions, or chats with images")
    parser.add_argument(
        "--target", default="", metavar="HOST:PORT", help=f"the server's port; default: {GRPC_TARGET}, {HTTP_TARGET}"
    )
    workload.add_arguments(parser)
    parser.add_argument("--slo", default="", metavar="NAME=TIME,…", help="service level, like ttft=200ms,itl=30ms")
    parser.add_argument(
        "--sweep",
        action="store_true",
        help="find the highest --rate, or --cameras, of which 99 %% keep --slo, from the given one; 1",
    )
    parser.add_argument("--num-devices", type=int, metavar="N", help="of the server; default: what it says over gRPC")
    parser.add_argument(
        "--gpu-hour-cost", type=float, metavar="C", help="of one device, for costs of what --sweep finds"
    )
    parser.add_argument("--vocab-size", type=int, metavar="N", help="of the prompts' ids; default: the server's")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--model", default="", help="served name; default: the server's")
    parser.add_argument("--api-key-file", default="", metavar="FILE", help="its first line is sent as the API key")
    parser.add_argument("--text", action="store_true", help="send the prompts as text (lengths are then approximate)")


def run(args: argparse.Namespace) -> Outcome:
    workload.complete(args)
    level = _level(args)
    if args.target:
        checked(args.target, "HTTP" if args.http else "gRPC")
    server, records, found = asyncio.run(_run(args, level))
    figures = summarize(records)
    if not figures["completed"]:
        raise BenchError(f"no request succeeded; errors by status: {figures['errors']}")
    if level is not None:
        figures["slo_share"] = level.share(records)
    if args.cameras is not None:
        cameras = len(records) // args.frames
        figures |= {"cameras": cameras, **camera_figures(records, cameras, args.interval)}
    config = {
        "door": "http" if args.http else "grpc",
        "target": args.target or (HTTP_TARGET if args.http else GRPC_TARGET),
        **{name: getattr(args, name) for name in REPORTED},
        "server": {"version": server.version, "model": server.models, "device": server.device, "dtype": server.dtype},
    }
    gaps = [gap * 1e3 for record in records for gap in record.gaps]
    return Outcome(figures | found, config, args.seed, {"ttft_ms": first_token_ms(records), "itl_ms": gaps})


async def _run(
    args: argparse.Namespace, level: ServiceLevel | None
) -> tuple[Server, list[RequestRecord], dict[str, Figure]]:
    """The server, the records of the run that counts, and what a sweep found."""
    target = args.target or (HTTP_TARGET if args.http else GRPC_TARGET)
    async with (open_http if args.http else open_grpc)(target, _key(args.api_key_file), workload.width(args)) as api:
        devices = args.num_devices or api.server.num_devices
        if args.gpu_hour_cost is not None and devices is None:
            raise BenchError("--num-devices: this server does not say how many devices it has; give the number")
        vocab_size = _vocab_size(args.vocab_size, api.server)
        numbers = itertools.count()

        async def run_at(load: float) -> list[RequestRecord]:
            return await workload.run_load(api, args, vocab_size, load, next(numbers))

        start = workload.load_of(args)
        if not args.sweep or level is None:
            return api.server, await run_at(start), {}
        sweep = Sweep(run_at, level, is_whole=args.cameras is not None)
        highest = await sweep.highest(start)
        return api.server, sweep.records, swept_figures(args, highest, devices) | {"sweep": _named(sweep.shares)}


def swept_figures(args: argparse.Namespace, highest: float, devices: int | None) -> dict[str, Figure]:
    """Figures of one device within the level, and with a price its costs; None where nobody says how many there are."""
    unit = "rate" if args.cameras is None else "cameras"
    per_device = None if devices is None else highest / devices
    requests = None if per_device is None else 3600 * per_device / (1.0 if args.cameras is None else args.interval)
    figures: dict[str, Figure] = {
        f"slo_{unit}": highest,
        f"slo_{unit}_per_device": per_device,
        "slo_requests_per_device_hour": requests,
    }
    if args.gpu_hour_cost is not None:
        figures["cost_per_1k_requests"] = 1000 * args.gpu_hour_cost / requests if requests else None
        if args.cameras is not None:
            figures["cost_per_camera_hour"] = args.gpu_hour_cost / per_device if per_device else None
    return figures


def _named(shares: dict[float, float]) -> dict[str, Figure]:
    return {f"{load:.4g}": share for load, share in shares.items()}


def _level(args: argparse.Namespace) -> ServiceLevel | None:
    """The level of `--slo`; a sweep of cameras has one without. Raises `BenchError` for options that miss another."""
    if args.gpu_hour_cost is not None and not args.sweep:
        raise BenchError("--gpu-hour-cost: prices what --sweep finds; give --sweep, too")
    for name in ("num_devices", "gpu_hour_cost"):
        value = getattr(args, name)
        if value is not None and not 0 < value < float("inf"):
            raise BenchError(f"--{name.replace('_', '-')}: must be above 0, got {value:g}")
    if args.slo:
        return read_service_level(args.slo)
    if args.sweep and args.cameras is None:
        raise BenchError("--sweep: needs the level to keep; give --slo, like ttft=200ms,itl=30ms")
    return ServiceLevel(e2e=args.interval * 1e3) if args.sweep else None


def _vocab_size(given: int | None, server: Server) -> int:
    """Raises `BenchError` where neither the user nor the server says it."""
    if given is not None and given < 1:
        raise BenchError(f"--vocab-size: must be at least 1, got {given}")
    size = given or server.vocab_size
    if size is None:
        raise BenchError("--vocab-size: this server does not say how many ids its model has; give the number")
    return size


def _key(api_key_file: str) -> str:
    """The file's first word, empty without a file. Raises `BenchError` when there is none in it."""
    if not api_key_file:
        return ""
    try:
        words = Path(api_key_file).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"--api-key-file {api_key_file}: cannot be read: {error}") from error
    if not words:
        raise BenchError(f"--api-key-file {api_key_file}: holds no key")
    return words[0]
