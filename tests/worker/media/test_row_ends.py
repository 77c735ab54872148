"""Steps of a model whose images have ends of rows among their tokens, and whose positions have one axis."""

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # collected in importlib mode, yet they share modules

from PIL import Image
from tiny_mistral3 import MERGE, Reference, write_checkpoint

from quire.proto.messages.media import Bind, Encode, MediaSpan
from quire.proto.transport.wire import ints
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Groups
from quire.worker.specs.encoder_pages import PAGE_ROWS
from quire.worker.start import start
from quire.worker.tables.slot_table import PlanError

SIZES = (96, 64), (160, 160), (32, 110), (16, 16)
IMAGES = [
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))
    for seed, (width, height) in enumerate(SIZES)
]
PARTS = [{"type": "image"}, {"type": "text", "text": "what do you see"}, *[{"type": "image"}] * 3]
CHAT = [{"role": "user", "content": PARTS}]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def reference(checkpoint):
    return Reference(checkpoint)


class Case:
    """The chat, and the pages that a scheduler would have given its images."""

    def __init__(self, reference, folder):
        self.ids, grids = reference.prompt(CHAT, IMAGES)
        self.expected = reference.greedy(self.ids, IMAGES, 5)
        (folder / "media/one").mkdir(parents=True)
        self.spans, self.encodes, self.binds, page, place = [], [], [], 0, 0
        for image, grid in zip(IMAGES, grids, strict=True):
            rows, columns = grid[1] // MERGE, grid[2] // MERGE
            place = self.ids.index(reference.image_id, place)
            self.spans.append(MediaSpan(place, rows * (columns + 1), grid, num_breaks=rows))
            place = self.spans[-1].stop
            assert self.ids[place - 1] == reference.end_id
            pixels = reference.resized(image).tobytes()
            digest = hashlib.sha256(pixels).digest()
            (folder / "media/one" / digest.hex()).write_bytes(pixels)
            count = -(-rows * columns // PAGE_ROWS)
            self.encodes.append(Encode(digest, grid, "one", ints([page, count])))
            self.binds.append(self.encodes[-1].pages)
            page += count

    def admit(self, scribe, slot=0, **fields):
        scribe.admit(slot, self.ids, spans=tuple(self.spans), **fields)

    def changes(self, begin=0, end=1 << 30, slot=0):
        """The encodes and binds of the images that begin among these tokens."""
        new = [number for number, span in enumerate(self.spans) if begin <= span.start < end]
        return {
            "encodes": tuple(self.encodes[number] for number in new),
            "binds": tuple(Bind(slot, number, self.binds[number]) for number in new),
        }


@pytest.fixture
def fields(checkpoint, tmp_path, settings):
    return {**settings, "model": str(checkpoint), "run_dir": str(tmp_path), "dtype": "float32"}


@pytest.fixture
def vision(fields, drive):
    threads = torch.get_num_threads()
    config = WorkerConfig(**fields)
    started = start(config, 0, Device("cpu", 0), Groups)
    driver = drive(started.executor, config.block_size)
    driver.facts = started.facts
    yield driver
    torch.set_num_threads(threads)


@pytest.fixture
def case(reference, tmp_path):
    return Case(reference, tmp_path)


def decoded(driver, first, count, slot=0):
    tokens = [first]
    while len(tokens) < count:
        tokens += driver.draw([(slot, 1)])
    return tokens


def test_a_prompt_draws_the_tokens_of_transformers(vision, case):
    assert (vision.facts.media.kinds, vision.facts.media.tokens_by) == (("image",), MERGE**2)
    assert vision.runner._inputs.shifts is None
    case.admit(vision.scribe)
    (first,) = vision.draw([(0, len(case.ids))], **case.changes())
    assert decoded(vision, first, 5) == case.expected


@pytest.mark.parametrize("chunk", [1, 3, 7, 11, 23])
def test_chunks_may_cut_rows_and_their_ends_anywhere(vision, case, chunk):
    case.admit(vision.scribe)
    begin, drawn = 0, []
    while begin < len(case.ids):
        end = min(begin + chunk, len(case.ids))
        drawn = vision.draw([(0, end - begin)], **case.changes(begin, end))
        begin = end
    assert decoded(vision, drawn[0], 5) == case.expected


def test_prompts_share_their_pages_and_a_text_beside_them_stays(vision, case, reference):
    text = reference.tokenizer("a quire is a gathering", add_special_tokens=False)["input_ids"]
    plain = reference.greedy(text, [], 5)
    vision.scribe.admit(2, text)
    case.admit(vision.scribe)
    first = vision.draw([(0, len(case.ids)), (2, len(text))], **case.changes())
    case.admit(vision.scribe, slot=1)
    again = vision.draw([(0, 1), (2, 1), (1, len(case.ids))], binds=case.changes(slot=1)["binds"])
    drawn = [(*first, None), again, *(vision.draw([(0, 1), (2, 1), (1, 1)]) for _ in range(4))]
    one, beside, other = map(list, zip(*drawn, strict=True))
    assert (one[:5], beside[:5], other[1:]) == (case.expected, plain, case.expected)


def test_two_ranks_draw_what_one_does(group, fields, scribe, case):
    scribe = scribe(fields["block_size"])
    ranks = group(2, **{name: value for name, value in fields.items() if name != "run_dir"})
    (Path(ranks.log).parent / "media").symlink_to(Path(fields["run_dir"]) / "media")
    ranks.join()
    case.admit(scribe)
    result = ranks.step(scribe.plan([(0, len(case.ids))], **case.changes())[1])
    tokens = [int(np.frombuffer(result.token_ids, np.int32)[0])]
    for _ in range(4):
        result = ranks.step(scribe.plan([(0, 1)])[1])
        tokens.append(int(np.frombuffer(result.token_ids, np.int32)[0]))
    assert tokens == case.expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_breaks": 3}, "3 breaks for a grid"),
        ({"num_breaks": 0}, "0 breaks for a grid"),
        ({"num_tokens": 27}, "27 tokens"),
        ({"grid": (1, 8, 11)}, "whole squares of 2 patches"),
    ],
)
def test_row_ends_that_do_not_fit_the_image_stop_the_worker(vision, case, change, words):
    first = case.spans[0]
    assert (first.num_tokens, first.num_breaks, first.grid) == (28, 4, (1, 8, 12))
    fields = {name: getattr(first, name) for name in ("start", "num_tokens", "grid", "num_breaks")}
    case.spans[0] = MediaSpan(**fields | change)
    case.admit(vision.scribe)
    with pytest.raises(PlanError, match=words):
        vision.run([(0, 3)])
