"""Steps of a model that reads images: tokens equal to those of transformers, however prompt and encodes are cut."""

import hashlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # collected in importlib mode, yet they share modules

from PIL import Image
from tiny_qwen3_vl import MERGE, Reference, write_checkpoint

from quire.proto.messages.media import Bind, Encode, MediaSpan, media_file
from quire.proto.transport.wire import ints
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Groups
from quire.worker.specs.encoder_pages import PAGE_ROWS
from quire.worker.start import start
from quire.worker.tables.slot_table import PlanError

SIZES = (96, 64), (200, 40), (32, 160)
CHAT = [
    {
        "role": "user",
        "content": [
            {"type": "image"},
            {"type": "text", "text": "what do you see"},
            {"type": "image"},
            {"type": "image"},
        ],
    }
]


def picture(size, seed):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


IMAGES = [picture(size, seed) for seed, size in enumerate(SIZES)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def reference(checkpoint):
    return Reference(checkpoint)


class Case:
    """A prompt with items, and the pages that a scheduler would have given them."""

    def __init__(self, reference, messages, images, folder):
        self.ids, self.grids = reference.prompt(messages, images)
        self.images = images
        starts = [
            place
            for place, token in enumerate(self.ids)
            if token == reference.image_id and (place == 0 or self.ids[place - 1] != reference.image_id)
        ]
        self.spans = tuple(
            MediaSpan(begin, rows * columns // MERGE**2, (1, rows, columns))
            for begin, (_, rows, columns) in zip(starts, self.grids, strict=True)
        )
        extents = [max(rows, columns) // MERGE for _, rows, columns in self.grids]
        self.shift = sum(extents) - sum(span.num_tokens for span in self.spans)
        self.encodes, self.binds, page = [], [], 0
        for index, (image, span) in enumerate(zip(images, self.spans, strict=True)):
            pixels = reference.resized(image).tobytes()
            digest = hashlib.sha256(pixels).digest()
            (folder / "media/one").mkdir(parents=True, exist_ok=True)
            (folder / "media/one" / digest.hex()).write_bytes(pixels)
            count = -(-span.num_tokens // PAGE_ROWS)
            pages = ints([page, count])
            page += count
            self.encodes.append(Encode(digest, span.grid, "one", pages))
            self.binds.append((index, pages))

    def admit(self, scribe, slot=0, **fields):
        scribe.admit(slot, self.ids, spans=self.spans, **fields)

    def changes(self, slot=0):
        """The plan's encodes and binds of everything at once."""
        return {"encodes": tuple(self.encodes), "binds": tuple(Bind(slot, *bind) for bind in self.binds)}


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
    return Case(reference, CHAT, IMAGES, tmp_path)


def decoded(driver, first, count, slot=0):
    tokens = [first]
    while len(tokens) < count:
        tokens += driver.draw([(slot, 1)])
    return tokens


def test_a_prompt_with_images_draws_the_tokens_of_transformers(vision, case, reference):
    assert vision.facts.media.kinds == ("image", "video")
    assert vision.facts.media.tokens_by == MERGE**2
    case.admit(vision.scribe)
    (first,) = vision.draw([(0, len(case.ids))], **case.changes())
    assert decoded(vision, first, 6) == reference.greedy(case.ids, IMAGES, 6)


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_chunks_may_cut_images_anywhere_and_each_is_encoded_when_its_first_token_runs(vision, case, reference, chunk):
    case.admit(vision.scribe)
    begin, drawn = 0, []
    while begin < len(case.ids):
        end = min(begin + chunk, len(case.ids))
        new = [n for n, span in enumerate(case.spans) if begin <= span.start < end]
        drawn = vision.draw(
            [(0, end - begin)],
            encodes=tuple(case.encodes[n] for n in new),
            binds=tuple(Bind(0, *case.binds[n]) for n in new),
        )
        begin = end
    assert decoded(vision, drawn[0], 4) == reference.greedy(case.ids, IMAGES, 4)


def test_a_step_says_how_long_it_encoded(vision, case):
    case.admit(vision.scribe)
    assert vision.run([(0, len(case.ids))], **case.changes()).encode_seconds > 0
    assert vision.run([(0, 1)]).encode_seconds == 0


def test_texts_beside_it_and_after_it_in_its_slot_are_as_they_were(vision, case, reference):
    text = reference.tokenizer("a quire is a gathering")["input_ids"]
    expected = reference.greedy(text, [], 5)
    vision.scribe.admit(1, text)
    beside = vision.draw([(1, len(text))])
    case.admit(vision.scribe)
    beside += vision.draw([(1, 1), (0, len(case.ids))], **case.changes())[:1]
    beside += [vision.draw([(0, 1), (1, 1)])[1] for _ in range(3)]
    assert beside == expected
    vision.scribe.release(0)
    assert vision.generate(0, text, 5) == expected


def test_a_prefix_that_ends_in_an_image_or_behind_all_goes_on_with_the_right_positions(vision, case, reference):
    case.admit(vision.scribe)
    (first,) = vision.draw([(0, len(case.ids))], **case.changes())
    expected = reference.greedy(case.ids, IMAGES, 4)
    blocks = vision.scribe.tables[0]
    block = vision.scribe.block_size
    for slot, computed in ((1, block), (2, len(case.ids) // block * block)):
        shared = blocks[: computed // block]
        own = vision.scribe.blocks(-(-len(case.ids) // block) - len(shared))
        case.admit(vision.scribe, slot, computed=computed, blocks=shared + own)
        binds = tuple(
            Bind(slot, *bind) for bind, span in zip(case.binds, case.spans, strict=True) if span.stop > computed
        )
        (again,) = vision.draw([(slot, len(case.ids) - computed)], binds=binds)
        assert decoded(vision, again, 4, slot) == expected
    assert first == expected[0]


def shorten(file):
    file.write_bytes(file.read_bytes()[:-1])


def lengthen(file):
    file.write_bytes(file.read_bytes() + b"\0")


def link(file):
    file.symlink_to(file.rename(file.with_suffix(".moved")))


def make_folder(file):
    file.unlink()
    file.mkdir()


def make_pipe(file):
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize("harm", [Path.unlink, shorten, lengthen, link, make_folder, make_pipe])
def test_a_lost_file_is_reported_and_the_others_are_encoded(vision, case, tmp_path, harm):
    harm(tmp_path / "media" / media_file(case.encodes[1].folder, case.encodes[1].digest))
    case.admit(vision.scribe)
    assert vision.run([(0, len(case.ids))], **case.changes()).lost_encodes == (1,)
    memory, page = vision.runner._media._encoder.memory.rows, PAGE_ROWS
    assert not memory[page : page + case.spans[1].num_tokens].any(), "rows that mean nothing hold nobody's"
    assert memory[2 * page : 2 * page + case.spans[2].num_tokens].any()


def test_a_slot_that_is_set_free_has_no_shift(vision, case, reference):
    """Texts turn alike wherever they begin, but not to the bit."""
    case.admit(vision.scribe)
    vision.draw([(0, len(case.ids))], **case.changes())
    assert vision.runner._inputs.shifts.tolist() == [case.shift, *[0] * 7]
    vision.scribe.release(0)
    vision.scribe.admit(0, [5, 6, 7])
    vision.draw([(0, 3)])
    assert not vision.runner._inputs.shifts.any()


@pytest.mark.parametrize("mode", ["data", "weights"])
def test_two_ranks_draw_what_one_does(mode, group, fields, scribe, case, reference):
    scribe = scribe(fields["block_size"])
    given = {name: value for name, value in fields.items() if name != "run_dir"}
    ranks = group(2, **given, mm_encoder_tp_mode=mode)
    run_dir = Path(ranks.log).parent
    (run_dir / "media").symlink_to(Path(fields["run_dir"]) / "media")
    ready = ranks.join()
    assert ready[0].facts.media == ready[1].facts.media
    case.admit(scribe)
    result = ranks.step(scribe.plan([(0, len(case.ids))], **case.changes())[1])
    tokens = [int(np.frombuffer(result.token_ids, np.int32)[0])]
    for _ in range(3):
        result = ranks.step(scribe.plan([(0, 1)])[1])
        tokens.append(int(np.frombuffer(result.token_ids, np.int32)[0]))
    assert tokens == reference.greedy(case.ids, IMAGES, 4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"binds": ()}, "no plan has bound"),
        ({"binds": (Bind(0, 3, ints([0, 1])),)}, "was not admitted"),
        ({"binds": (Bind(0, 0, ints([10**6, 1])),)}, "outside"),
        ({"binds": (Bind(0, 0, ints([0, 3])),)}, "3 pages for"),
    ],
)
def test_a_plan_that_does_not_fit_stops_the_worker(vision, case, changes, words):
    case.admit(vision.scribe)
    with pytest.raises(PlanError, match=words):
        vision.run([(0, len(case.ids))], **{**case.changes(), **changes})


def test_the_language_model_alone_needs_no_tower(fields, drive, reference):
    config = WorkerConfig(**fields, language_model_only=True)
    started = start(config, 0, Device("cpu", 0), Groups)
    assert started.facts.media is None
    text = reference.tokenizer("a quire is a gathering")["input_ids"]
    driver = drive(started.executor, config.block_size)
    assert driver.generate(0, text, 5) == reference.greedy(text, [], 5)


def test_a_model_of_text_alone_refuses_to_encode(driver):
    driver.scribe.admit(0, [5, 6, 7])
    with pytest.raises(PlanError, match="text alone"):
        driver.run([(0, 3)], encodes=(Encode(bytes(32), (1, MERGE, MERGE), "a", ints([0, 1])),))
