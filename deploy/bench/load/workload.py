"""The requests of `quire bench serve`: which are sent, how many of them and when, from options and presets."""

import argparse

import numpy as np

from quire.deploy.bench.load import prompts
from quire.deploy.bench.load.api_clients import ApiClient
from quire.deploy.bench.load.cameras import frame_moments
from quire.deploy.bench.load.images import ImageChat, photograph, size_of
from quire.deploy.bench.load.loops import closed_loop, open_loop, poisson_arrivals
from quire.deploy.bench.load.request_record import RequestRecord
from quire.deploy.bench.report.errors import BenchError

DEFAULTS: dict[str, object] = {
    "num_prompts": 64,
    "input_len": "128",
    "output_len": "64",
    "shared_prefix": 0,
    "images": 0,
    "image_size": "1280x720",
    "interval": 1.0,
    "frames": 10,
}
PRESETS: dict[str, dict[str, object]] = {
    "eva": {"cameras": 100, "images": 1, "shared_prefix": 1500, "input_len": "32", "output_len": "64"},
}
"""Options that a name stands for; those that are given win."""
MODES = ("concurrency", "rate", "cameras")
CONCURRENCY = 16
FIRST_RATE = 1.0
"""With which a sweep begins that is given none."""
SWEPT_STREAMS = 8192
"""At a time, at any load that a sweep tries."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--concurrency", type=int, metavar="N", help=f"requests under way at a time; {CONCURRENCY}")
    mode.add_argument("--rate", type=float, metavar="R", help="requests sent per second, Poisson")
    mode.add_argument("--cameras", type=int, metavar="N", help="streams that send a request each at an interval")
    parser.add_argument("--interval", type=float, metavar="S", help="seconds between a camera's frames; 1")
    parser.add_argument("--frames", type=int, metavar="N", help="of each camera, instead of --num-prompts; 10")
    prompts.add_arguments(parser, num_prompts=64)
    parser.add_argument("--images", type=int, metavar="K", help="random photographs in each request, no two alike")
    parser.add_argument("--image-size", metavar="WxH", help="of each, in pixels; 1280x720")
    stood_for = "; ".join(f"{name}: {_words(options)}" for name, options in PRESETS.items())
    parser.add_argument("--preset", choices=tuple(PRESETS), help=f"a load by its name: {stood_for}")
    parser.set_defaults(**dict.fromkeys(DEFAULTS))  # so that what is given can be told from what is not


def complete(args: argparse.Namespace) -> None:
    """Fill in what was not given. Raises `BenchError` for a load that cannot be."""
    if args.image_size is not None and not (args.images or args.preset):
        raise BenchError("--image-size: there are no images; give --images K, too")
    for name, value in (PRESETS[args.preset] if args.preset else {}).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.cameras is None and (args.interval, args.frames) != (None, None):
        raise BenchError("--interval, --frames: are of cameras; give --cameras N, too")
    if args.cameras is not None and args.num_prompts is not None:
        raise BenchError("--num-prompts: a camera sends as many as --frames says; leave it out")
    for name, value in DEFAULTS.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    given = [f"--{name}" for name in MODES if getattr(args, name) is not None]
    if len(given) > 1:
        raise BenchError(f"{' and '.join(given)}: a run has one of them; leave out what --preset {args.preset} is not")
    if args.sweep and args.concurrency is not None:
        raise BenchError("--sweep: varies --rate or --cameras; leave --concurrency out")
    if not given and args.sweep:
        args.rate = FIRST_RATE
    elif not given:
        args.concurrency = CONCURRENCY
    size_of(args.image_size)
    for name, least in (("images", 0), ("frames", 1), ("cameras", 1), ("concurrency", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise BenchError(f"--{name}: must be at least {least}, got {value}")
    if not 0 < args.interval < float("inf"):
        raise BenchError(f"--interval: must be above 0 seconds, got {args.interval:g}")


def load_of(args: argparse.Namespace) -> float:
    """Requests a second, cameras, or requests under way, as one number."""
    return float(next(value for name in MODES if (value := getattr(args, name)) is not None))


def width(args: argparse.Namespace) -> int:
    """Streams at a time, at most."""
    if args.sweep:
        return SWEPT_STREAMS
    if args.cameras is not None:
        return int(args.cameras * args.frames)
    return int(args.num_prompts if args.rate is not None else args.concurrency)


async def run_load(
    api: ApiClient, args: argparse.Namespace, vocab_size: int, load: float, number: int
) -> list[RequestRecord]:
    """Make the requests of run `number`, then send them: `load` a second, by so many cameras, or so many at a time.

    No other run has the same ids or images, so nothing that a server keeps of one helps it in another.
    """
    seed = (args.seed, number)
    if args.cameras is not None:
        cameras = int(load)
        first, *requests = await _requests(api, args, vocab_size, seed, 1 + cameras * args.frames)
        await api.send(first)  # the system prompt is known before the clock starts, as it is on every day but the first
        return await open_loop(api.send, requests, frame_moments(cameras, args.frames, args.interval, args.seed))
    requests = await _requests(api, args, vocab_size, seed, args.num_prompts)
    if args.rate is not None:
        return await open_loop(api.send, requests, poisson_arrivals(load, len(requests), args.seed))
    return await closed_loop(api.send, requests, int(load))


async def _requests(
    api: ApiClient, args: argparse.Namespace, vocab_size: int, seed: tuple[int, int], count: int
) -> list[object]:
    drawn = prompts.draw(args, vocab_size=vocab_size, seed=seed, count=count)
    inputs: list[str | list[int] | ImageChat] = []
    if args.images:
        inputs += await _chats(api, args, drawn, seed)
    else:
        inputs += [await api.text(one.token_ids) if args.text else one.token_ids for one in drawn]
    return [
        api.request(given, one.output_len, args.temperature, args.model, index)
        for index, (given, one) in enumerate(zip(inputs, drawn, strict=True))
    ]


async def _chats(
    api: ApiClient, args: argparse.Namespace, drawn: list[prompts.Prompt], seed: tuple[int, int]
) -> list[ImageChat]:
    random = np.random.default_rng((*seed, 1))
    width, height = size_of(args.image_size)
    prefix = drawn[0].token_ids[: args.shared_prefix]
    system = await api.text(prefix) if prefix else ""
    return [
        ImageChat(
            system,
            await api.text(one.token_ids[len(prefix) :]),
            tuple(photograph(width, height, random) for _ in range(args.images)),
        )
        for one in drawn
    ]


def _words(options: dict[str, object]) -> str:
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in options.items())
