"""`quire bench serve`: a load generator against a running server, over gRPC or HTTP.

Over HTTP any server of OpenAI's completions will do that takes token ids as a prompt, as those of vLLM and llama.cpp.

`--concurrency` keeps so many requests under way (a closed loop); `--rate` sends them as a Poisson process whatever the
server does (an open loop, which alone shows overload). Every request generates exactly its output length.
"""

import argparse
import asyncio
from pathlib import Path

from quire.deploy.bench.load import prompts
from quire.deploy.bench.load.api_clients import Server, open_grpc, open_http
from quire.deploy.bench.load.loops import closed_loop, open_loop, poisson_arrivals
from quire.deploy.bench.load.request_record import RequestRecord, first_token_ms, summarize
from quire.deploy.bench.report.errors import BenchError
from quire.deploy.bench.report.report import Outcome
from quire.deploy.commands.target import checked

GRPC_TARGET = "127.0.0.1:50051"
HTTP_TARGET = "127.0.0.1:8000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--http", action="store_true", help="over HTTP: streamed /v1/completions")
    parser.add_argument(
        "--target", default="", metavar="HOST:PORT", help=f"the server's port; default: {GRPC_TARGET}, {HTTP_TARGET}"
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--concurrency", type=int, default=16, metavar="N", help="requests under way at a time")
    mode.add_argument("--rate", type=float, metavar="R", help="requests sent per second, Poisson")
    prompts.add_arguments(parser, num_prompts=64)
    parser.add_argument("--vocab-size", type=int, metavar="N", help="of the prompts' ids; default: the server's")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--model", default="", help="served name; default: the server's")
    parser.add_argument("--api-key-file", default="", metavar="FILE", help="its first line is sent as the API key")
    parser.add_argument("--text", action="store_true", help="send the prompts as text (lengths are then approximate)")


def run(args: argparse.Namespace) -> Outcome:
    if args.rate is None and args.concurrency < 1:
        raise BenchError(f"--concurrency: must be at least 1, got {args.concurrency}")
    if args.target:
        checked(args.target, "HTTP" if args.http else "gRPC")
    server, records = asyncio.run(_run(args))
    figures = summarize(records)
    if not figures["completed"]:
        raise BenchError(f"no request succeeded; errors by status: {figures['errors']}")
    config = {
        "door": "http" if args.http else "grpc",
        "target": args.target or (HTTP_TARGET if args.http else GRPC_TARGET),
        "concurrency": None if args.rate is not None else args.concurrency,
        "rate": args.rate,
        "num_prompts": args.num_prompts,
        "input_len": args.input_len,
        "output_len": args.output_len,
        "shared_prefix": args.shared_prefix,
        "temperature": args.temperature,
        "text": args.text,
        "server": {"version": server.version, "model": server.models, "device": server.device, "dtype": server.dtype},
    }
    gaps = [gap * 1e3 for record in records for gap in record.gaps]
    return Outcome(figures, config, args.seed, {"ttft_ms": first_token_ms(records), "itl_ms": gaps})


async def _run(args: argparse.Namespace) -> tuple[Server, list[RequestRecord]]:
    key = _key(args.api_key_file)
    target = args.target or (HTTP_TARGET if args.http else GRPC_TARGET)
    width = args.num_prompts if args.rate is not None else args.concurrency
    async with (open_http if args.http else open_grpc)(target, key, width) as api:
        drawn = prompts.draw(args, vocab_size=_vocab_size(args.vocab_size, api.server), seed=args.seed)
        inputs = [await api.text(prompt.token_ids) if args.text else prompt.token_ids for prompt in drawn]
        requests = [
            api.request(given, prompt.output_len, args.temperature, args.model, index)
            for index, (given, prompt) in enumerate(zip(inputs, drawn, strict=True))
        ]
        if args.rate is not None:
            arrivals = poisson_arrivals(args.rate, len(requests), args.seed)
            return api.server, await open_loop(api.send, requests, arrivals)
        return api.server, await closed_loop(api.send, requests, args.concurrency)


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
