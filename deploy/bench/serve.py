"""`quire bench serve`: a load generator over gRPC against a running server.

`--concurrency` keeps so many requests under way (a closed loop); `--rate` sends them as a Poisson process whatever the
server does (an open loop, which alone shows overload). Every request generates exactly its output length.
"""

import argparse
import asyncio
from collections.abc import Sequence

import grpc

from quire.deploy.bench import prompts
from quire.deploy.bench.errors import BenchError
from quire.deploy.bench.load import closed_loop, open_loop, poisson_arrivals
from quire.deploy.bench.prompts import Prompt
from quire.deploy.bench.record import Record, first_token_ms, stream, summarize
from quire.deploy.bench.report import Outcome
from quire.proto.generated import quire_pb2, quire_pb2_grpc

CONNECT_SECONDS = 10.0
CHANNEL_OPTIONS = (("grpc.max_receive_message_length", 64 << 20), ("grpc.use_local_subchannel_pool", 1))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default="127.0.0.1:50051", metavar="HOST:PORT", help="a quire server's gRPC port")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--concurrency", type=int, default=16, metavar="N", help="requests under way at a time")
    mode.add_argument("--rate", type=float, metavar="R", help="requests sent per second, Poisson")
    prompts.add_arguments(parser, num_prompts=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--model", default="", help="served name; default: the server's")
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
    return Outcome(figures, config, {"ttft_ms": first_token_ms(records), "itl_ms": gaps})


async def _run(args: argparse.Namespace) -> tuple[quire_pb2.GetServerInfoResponse, list[Record]]:
    async with grpc.aio.insecure_channel(args.target, options=CHANNEL_OPTIONS) as channel:
        try:
            info = await quire_pb2_grpc.ControlStub(channel).GetServerInfo(
                quire_pb2.GetServerInfoRequest(), timeout=CONNECT_SECONDS, wait_for_ready=True
            )
        except grpc.aio.AioRpcError as error:
            raise BenchError(f"--target {args.target}: {error.code().name}: {error.details()}") from error
        if info.state != "ready":
            raise BenchError(f"--target {args.target}: the server is {info.state!r}, not ready; wait until it is")
        drawn = prompts.draw(args, vocab_size=info.vocab_size, seed=args.seed)
        stub = quire_pb2_grpc.InferenceStub(channel)
        requests = [request_of(prompt, args.temperature, args.model, index) for index, prompt in enumerate(drawn)]
        if args.text:
            await _as_text(stub, requests)
        return info, await _drive(args, stub, requests)


async def _drive(
    args: argparse.Namespace, stub: quire_pb2_grpc.InferenceStub, requests: Sequence[quire_pb2.GenerateRequest]
) -> list[Record]:
    async def send(request: quire_pb2.GenerateRequest) -> Record:
        return await stream(stub, request)

    if args.rate is not None:
        return await open_loop(send, requests, poisson_arrivals(args.rate, len(requests), args.seed))
    return await closed_loop(send, requests, args.concurrency)


def request_of(prompt: Prompt, temperature: float, model: str, seed: int) -> quire_pb2.GenerateRequest:
    request = quire_pb2.GenerateRequest(
        prompt_token_ids=quire_pb2.TokenIds(ids=prompt.token_ids),
        max_tokens=prompt.output_len,
        temperature=temperature,
        ignore_eos=True,
        seed=seed,
    )
    if model:
        request.model = model
    return request


async def _as_text(stub: quire_pb2_grpc.InferenceStub, requests: Sequence[quire_pb2.GenerateRequest]) -> None:
    """Replace token ids by the text they stand for, so that the server tokenizes as it does for people."""
    for request in requests:
        ids = list(request.prompt_token_ids.ids)
        answer = await stub.Detokenize(quire_pb2.DetokenizeRequest(token_ids=ids))
        request.prompt = answer.text
