"""`quire bench serve`: a load generator over gRPC against a running server.

`--concurrency` keeps so many requests under way (a closed loop); `--rate` sends them as a Poisson process whatever the
server does (an open loop, which alone shows overload). Every request generates exactly its output length.
"""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

import grpc

from quire.deploy.bench import prompts
from quire.deploy.bench.connection import connect
from quire.deploy.bench.errors import BenchError
from quire.deploy.bench.load import closed_loop, open_loop, poisson_arrivals
from quire.deploy.bench.record import Metadata, Record, first_token_ms, request_of, stream, summarize
from quire.deploy.bench.report import Outcome
from quire.proto.generated import quire_pb2, quire_pb2_grpc

CONNECT_SECONDS = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default="127.0.0.1:50051", metavar="HOST:PORT", help="a quire server's gRPC port")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--concurrency", type=int, default=16, metavar="N", help="requests under way at a time")
    mode.add_argument("--rate", type=float, metavar="R", help="requests sent per second, Poisson")
    prompts.add_arguments(parser, num_prompts=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--model", default="", help="served name; default: the server's")
    parser.add_argument("--api-key-file", default="", metavar="FILE", help="its first line is sent as the API key")
    parser.add_argument("--text", action="store_true", help="send the prompts as text (lengths are then approximate)")


def run(args: argparse.Namespace) -> Outcome:
    if args.rate is None and args.concurrency < 1:
        raise BenchError(f"--concurrency: must be at least 1, got {args.concurrency}")
    info, records = asyncio.run(_run(args))
    figures = summarize(records)
    if not figures["completed"]:
        raise BenchError(f"no request succeeded; errors by status: {figures['errors']}")
    config = {
        "target": args.target,
        "concurrency": None if args.rate is not None else args.concurrency,
        "rate": args.rate,
        "num_prompts": args.num_prompts,
        "input_len": args.input_len,
        "output_len": args.output_len,
        "shared_prefix": args.shared_prefix,
        "temperature": args.temperature,
        "text": args.text,
        "server": {
            "version": info.version,
            "model": list(info.model_names),
            "device": info.device,
            "dtype": info.dtype,
        },
    }
    gaps = [gap * 1e3 for record in records for gap in record.gaps]
    return Outcome(figures, config, args.seed, {"ttft_ms": first_token_ms(records), "itl_ms": gaps})


async def _run(args: argparse.Namespace) -> tuple[quire_pb2.GetServerInfoResponse, list[Record]]:
    metadata = _metadata(args.api_key_file)
    info = await _server_info(args.target, metadata)
    drawn = prompts.draw(args, vocab_size=info.vocab_size, seed=args.seed)
    requests = [request_of(prompt, args.temperature, args.model, index) for index, prompt in enumerate(drawn)]
    async with connect([args.target], args.num_prompts if args.rate is not None else args.concurrency) as stubs:
        if args.text:
            await _as_text(next(stubs), requests, metadata)

        async def send(request: quire_pb2.GenerateRequest) -> Record:
            return await stream(next(stubs), request, metadata)

        if args.rate is not None:
            return info, await open_loop(send, requests, poisson_arrivals(args.rate, len(requests), args.seed))
        return info, await closed_loop(send, requests, args.concurrency)


async def _server_info(target: str, metadata: Metadata) -> quire_pb2.GetServerInfoResponse:
    """Raises `BenchError` when no ready server answers."""
    async with grpc.aio.insecure_channel(target) as channel:
        control = quire_pb2_grpc.ControlStub(channel)  # type: ignore[no-untyped-call]
        try:
            info: quire_pb2.GetServerInfoResponse = await control.GetServerInfo(
                quire_pb2.GetServerInfoRequest(), timeout=CONNECT_SECONDS, metadata=metadata
            )
        except grpc.aio.AioRpcError as error:
            raise BenchError(f"--target {target}: {error.code().name}: {error.details()}") from error
    if info.state != "ready":
        raise BenchError(f"--target {target}: the server is {info.state!r}; wait until it is ready")
    return info


def _metadata(api_key_file: str) -> Metadata:
    """The key is the file's first word. Raises `BenchError` when there is none."""
    if not api_key_file:
        return ()
    try:
        words = Path(api_key_file).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"--api-key-file {api_key_file}: cannot be read: {error}") from error
    if not words:
        raise BenchError(f"--api-key-file {api_key_file}: holds no key")
    return (("authorization", f"Bearer {words[0]}"),)


async def _as_text(
    stub: quire_pb2_grpc.InferenceStub, requests: Sequence[quire_pb2.GenerateRequest], metadata: Metadata
) -> None:
    """Replace token ids by the text they stand for, so that the server tokenizes as it does for people."""
    for request in requests:
        ids = list(request.prompt_token_ids.ids)
        try:
            answer = await stub.Detokenize(quire_pb2.DetokenizeRequest(token_ids=ids), metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise BenchError(f"--text: Detokenize: {error.code().name}: {error.details()}") from error
        request.prompt = answer.text
