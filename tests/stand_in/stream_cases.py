"""Images encoded beside steps, in the order of the streams: prints one JSON object, fault -> what was found with it."""

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from host import on_chip
from streams import Order, ordered

sys.path.append(str(Path(__file__).parents[1]))
from tiny_qwen3_vl import PATCH, write_checkpoint

from quire.proto.messages.media import Bind, Encode, MediaSpan, media_file
from quire.proto.messages.params import SamplingParams
from quire.proto.messages.plans import Admit, StepPlan
from quire.proto.transport.wire import ints
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Groups
from quire.worker.media.media_encoder import Encoded, MediaEncoder
from quire.worker.start import start
from quire.worker.step.runner import InFlight

SIDE, ROWS = 8, 16
"""Patches of an image's side, and its tokens: they lie in one page."""
GREEDY = SamplingParams(temperature=0.0, max_tokens=10_000, ignore_eos=True)
STEPS = 6


def plans() -> Iterator[StepPlan]:
    """A text that decodes, and beside it an image in each step, all of them in one page."""
    text = Admit(0, ints([5] * 8), 8, 0, 0, GREEDY, (ints(range(4)),))
    yield StepPlan(1, 1, b"", ints([0]), ints([8]), b"\1", admits=(text,))
    for step in range(STEPS):
        slot, span = 1 + step % 2, MediaSpan(2, ROWS, (1, SIDE, SIDE))
        prompt = Admit(slot, ints([7] * 20), 20, 0, 0, GREEDY, (ints(range(8 + 4 * step, 12 + 4 * step)),), 0, (span,))
        page = ints([0, 1])
        yield StepPlan(
            1, 2 + step, b"", ints([0, slot]), ints([1, 20]), b"\1\1", admits=(prompt,),
            releases=ints([slot] if step > 1 else []),
            encodes=(Encode(bytes([step]) * 32, span.grid, "one", page),), binds=(Bind(slot, 0, page),),
        )  # fmt: skip


@contextlib.contextmanager
def unawaited(device: Device) -> Iterator[Callable[[], None]]:
    """The main stream reads what is not made yet."""
    with torch.cuda.stream(device._encode_stream):
        yield lambda: None


def untaken(device: Device) -> None:
    """The next encode gets the memory of this one's rows at once."""
    device._rows_taken = torch.cuda.Event()


def written_beside(encoder: MediaEncoder, encodes: Sequence[Encode]) -> Encoded:
    """Pages are written while the step before reads them."""
    stream = encoder._device._encode_stream
    with torch.cuda.stream(stream):
        encoded = encode(encoder, encodes)
    torch.cuda.current_stream().wait_stream(stream)
    return encoded


encode = MediaEncoder.encode
FAULTS: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "none": contextlib.nullcontext,
    "unawaited": lambda: mock.patch.object(Device, "encode_stream", unawaited),
    "untaken": lambda: mock.patch.object(Device, "_record_taken", untaken),
    "written beside": lambda: mock.patch.object(MediaEncoder, "encode", written_beside),
}


def run(model: Path, names: Sequence[str]) -> Iterator[tuple[str, dict[str, object]]]:
    """Steps with two in flight, as a scheduler sends them: races, and of each encode the operations of the main stream
    that it need not wait for.
    """
    config = WorkerConfig(
        model=str(model), run_dir=str(model), load_format="dummy", device="cuda", dtype="bfloat16", max_num_seqs=4,
        max_num_batched_tokens=64, block_size=16, kv_cache_memory_bytes=4 << 20, enforce_eager=True,
        max_num_encoder_patches=SIDE**2, max_model_len=256,
    )  # fmt: skip
    for name in names:
        with on_chip(90, compiles=False), torch.inference_mode(), ordered() as order:
            runner = start(config, 0, Device("cuda", 0), Groups).executor
            order.races.clear()
            with FAULTS[name](), noted(order) as beside:
                flying: list[InFlight] = []
                for plan in plans():
                    flying.append(runner.launch(plan))
                    if len(flying) == 2:
                        runner.collect(flying.pop(0))
            yield name, {"races": sorted(order.races), "beside": beside}


@contextlib.contextmanager
def noted(order: Order) -> Iterator[list[int]]:
    """Of each encode that begins inside, how much of the main stream's work it may begin before."""
    made, beside = MediaEncoder._made, []

    def noted_made(*given):
        beside.append(order.clocks["main"]["main"] - order.clocks[order.streams[-1]]["main"])
        return made(*given)

    with mock.patch.object(MediaEncoder, "_made", noted_made):
        yield beside


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = write_checkpoint(Path(folder))
        for step in range(STEPS):
            file = model / "media" / media_file("one", bytes([step]) * 32)
            file.parent.mkdir(parents=True, exist_ok=True)
            np.zeros((1, SIDE * PATCH, SIDE * PATCH, 3), np.uint8).tofile(file)
        print(json.dumps(dict(run(model, sys.argv[1:]))))


if __name__ == "__main__":
    main()
