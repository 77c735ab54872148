"""The limits of the front door for images, each by one command, on a machine that does nothing else:

    python tests/bench/image_door.py [--only submit beside processes]

A real frontend before a stand-in scheduler (`lone_frontend.py`), and JPEG files of 1920x1080, resized to 1920x1088.

* submit: from the arrival of a request with one image to its Submit, less what this process needs right before to
  decode and resize the same file: p50 at most 5 ms
* beside: p99 inter-token time of 16 streams while a request with eight images is prepared: at most 20 % more
* processes: images a second with `--media-processes 2`, divided by the same with 1, in turns: at least 1.8

Prints what it finds and, last, one JSON object.
"""

import argparse
import io
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import image_soak
import lone_frontend
import numpy as np
from lone_frontend import Frontend, Stage
from PIL import Image

from quire.deploy.bench.load.bench_processes import cpu_seconds
from quire.deploy.bench.load.images import ImageChat, photograph
from quire.deploy.bench.report.report import commit, machine, percentiles

PARTS = ("submit", "beside", "processes")
LIMITS = {"submit": 5.0, "beside": 1.2, "processes": 1.8}
SIZE, RESIZED = (1920, 1080), (1920, 1088)
IMAGE_TOKENS = 60 * 34
PIXELS = {"shortest_edge": 65_536, "longest_edge": 16_777_216}
"""As Qwen3-VL is published."""
STORED_BYTES = RESIZED[0] * RESIZED[1] * 3 + 16_384
MAX_MODEL_LEN = 32_768
AT_ONCE = 8
"""Images of the request beside streams, and requests of one image on their way while images are counted."""
WARMUP = 2
"""Images of each door that do not count."""


class Images:
    """Requests about images that no frontend has in its store any more when it sees them again."""

    def __init__(self, count: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.files = [photograph(*SIZE, random) for _ in range(count)]

    def chats(self, each: int) -> list[ImageChat]:
        files = self.files
        return [ImageChat("", "what", tuple(files[at : at + each])) for at in range(0, len(files) - each + 1, each)]


def stage(model: Path, pace_ms: float, **config: int) -> Stage:
    """`media_store_bytes` has room for what one part of this program refers to at a time, and little else."""
    stored = (AT_ONCE + 2) * STORED_BYTES
    return Stage(pace_ms, MAX_MODEL_LEN, model=model, media_store_bytes=stored, **config)


def submit(model: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Beside the times, which whatever else runs makes longer: processor time of an image, here and in the frontend."""
    figures: dict[str, Any] = {}
    for number, name in enumerate(lone_frontend.DOORS):
        images = Images(args.images + WARMUP, args.seed + number)
        alone: list[tuple[float, float]] = []
        sent: list[float] = []
        door_stage = stage(model, 1.0)
        with door_stage as frontend, frontend.door(name) as send:
            for index, (file, chat) in enumerate(zip(images.files, images.chats(1), strict=True)):
                if index == WARMUP:
                    before = cpu_of_all(door_stage.pid)
                alone.append(decode_ms(file))
                sent.append(time.monotonic())
                send(chat)
            cpu = cpu_of_all(door_stage.pid) - before
        arrivals = door_stage.arrivals[WARMUP:]
        own = [1e3 * (lone_frontend.BUDGET_SECONDS - left) for _, _, left in arrivals]
        taken = [1e3 * (at - since) for since, (at, _, _) in zip(sent[WARMUP:], arrivals, strict=True)]
        decode, decode_cpu = zip(*alone[WARMUP:], strict=True)
        added = [mine - here for mine, here in zip(own, decode, strict=True)]
        figures |= {
            **percentiles(f"{name}_ms", own, (50, 99)),
            **percentiles(f"{name}_from_send_ms", taken, (50, 99)),
            **percentiles(f"{name}_decode_ms", decode, (50, 99)),
            **percentiles(f"{name}_added_ms", added, (25, 50, 75)),
            f"{name}_cpu_ms": 1e3 * cpu / args.images,
            f"{name}_decode_cpu_ms": statistics.mean(decode_cpu),
        }
    return figures | {"value": max(figures[f"{name}_added_ms_p50"] for name in lone_frontend.DOORS)}


def decode_ms(file: bytes) -> tuple[float, float]:
    """Milliseconds of this process to the resized pixels of a file, by the clock and of a processor."""
    begun, cpu = time.perf_counter(), time.thread_time()
    Image.open(io.BytesIO(file)).convert("RGB").resize(RESIZED, Image.Resampling.BICUBIC).tobytes()
    return 1e3 * (time.perf_counter() - begun), 1e3 * (time.thread_time() - cpu)


def cpu_of_all(frontend: int) -> float:
    """Processor seconds of a frontend and of its children."""
    return sum(cpu_seconds(pid) for _, pid in image_soak.processes(frontend))


def beside(model: Path, args: argparse.Namespace) -> dict[str, Any]:
    chats = Images(lone_frontend.LONG_PROMPTS * AT_ONCE, args.seed).chats(AT_ONCE)
    output_len = int(1e3 * args.seconds / args.pace_ms)
    figures: dict[str, Any] = {
        door: lone_frontend.beside_long(
            stage(model, args.pace_ms), door, chats, args.streams, output_len, AT_ONCE * IMAGE_TOKENS
        )
        for door in lone_frontend.DOORS
    }
    return figures | {"value": max(one["p99_ratio"] for one in figures.values())}


def processes(model: Path, args: argparse.Namespace) -> dict[str, Any]:
    chats = Images(max(args.images, 3 * AT_ONCE), args.seed).chats(1)
    rates: dict[int, list[float]] = {1: [], 2: []}
    with stage(model, 1.0, media_processes=1) as one, stage(model, 1.0, media_processes=2) as two:
        for number in range(args.rounds + 1):
            for count, frontend in ((1, one), (2, two)):
                rate = images_per_second(frontend, chats)
                if number:  # the first round warms up
                    rates[count].append(rate)
    # turns stand side by side, so that what else the machine does weighs on both
    ratios = [fast / slow for slow, fast in zip(rates[1], rates[2], strict=True)]
    figures = {f"{count}_images_per_s": statistics.median(found) for count, found in rates.items()}
    return figures | {"ratios": ratios, "value": statistics.median(ratios)}


def images_per_second(frontend: Frontend, chats: Sequence[ImageChat]) -> float:
    """Requests of one image each, `AT_ONCE` on their way at a time."""
    waiting = iter(chats)

    def client() -> None:
        with frontend.door("grpc") as send:
            for chat in waiting:  # all of these threads take from one iterator
                send(chat)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        begun = time.monotonic()
        for done in [pool.submit(client) for _ in range(AT_ONCE)]:
            done.result()
        return len(chats) / (time.monotonic() - begun)


MEASURES = dict(zip(PARTS, (submit, beside, processes), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--images", type=int, default=40, help="submit: over each door; processes: in each turn")
    parser.add_argument("--seconds", type=float, default=20.0, help="beside: for each door")
    parser.add_argument("--streams", type=int, default=16, help="beside: steady streams")
    parser.add_argument("--pace-ms", type=float, default=10.0, help="beside: between two tokens of a stream")
    parser.add_argument("--rounds", type=int, default=5, help="processes: both in turns, so often")
    args = parser.parse_args()
    document: dict[str, Any] = {
        "bench": "image_door",
        "machine": machine(),
        "commit": commit(),
        "seed": args.seed,
        "config": vars(args),
    }
    from tiny_qwen3_vl import write_checkpoint  # not in the processes that only send

    with tempfile.TemporaryDirectory() as folder:
        model = write_checkpoint(Path(folder), text={"max_position_embeddings": MAX_MODEL_LEN})
        processor = model / "preprocessor_config.json"
        processor.write_text(json.dumps({**json.loads(processor.read_text()), "size": PIXELS}))
        for part in args.only:
            found = MEASURES[part](model, args) | {"limit": LIMITS[part]}
            document[part] = found
            is_least = part == "processes"
            is_within = found["value"] >= found["limit"] if is_least else found["value"] <= found["limit"]
            verdict = "within" if is_within else "MISSED:"
            print(f"{part}: {found['value']:.3g}, {verdict} the limit of {found['limit']:g}", flush=True)
            for name, value in found.items():
                print(f"    {name}: {value}", flush=True)
    print(json.dumps(document))


if __name__ == "__main__":
    main()
