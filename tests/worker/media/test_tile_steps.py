"""Steps of a model that reads images in tiles of one size, and whose positions have one axis."""

import hashlib
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # collected in importlib mode, yet they share modules

from noise_pictures import picture
from tiny_internvl import SIDE, TOKENS, Reference, write_checkpoint

from quire.frontend.media.decode.decode_child import image_items
from quire.frontend.media.families.table import read_family
from quire.proto.messages.media import Bind, Encode, MediaSpan
from quire.proto.transport.wire import ints
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Groups
from quire.worker.start import start
from quire.worker.tables.slot_table import PlanError

IMAGES = [picture(60, 130, 0), picture(32, 32, 1), picture(60, 130, 0)]
CHAT = [{"role": "user", "content": [*[{"type": "image"}] * 3, {"type": "text", "text": "what do you see"}]}]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("tiles"))


@pytest.fixture(scope="module")
def reference(checkpoint):
    return Reference(checkpoint)


@pytest.fixture
def vision(checkpoint, tmp_path, settings, drive):
    threads = torch.get_num_threads()
    config = WorkerConfig(**{**settings, "model": str(checkpoint), "run_dir": str(tmp_path), "dtype": "float32"})
    started = start(config, 0, Device("cpu", 0), Groups)
    driver = drive(started.executor, config.block_size)
    driver.facts = started.facts
    yield driver
    torch.set_num_threads(threads)


class Case:
    """A prompt with tiles, each an item, and the pages that a scheduler would have given them: one for each digest."""

    def __init__(self, reference, checkpoint, folder):
        inputs = reference.inputs(CHAT, IMAGES)
        self.inputs, self.ids = inputs, inputs["input_ids"][0].tolist()
        places = [place for place, token in enumerate(self.ids) if token == reference.image_id]
        self.spans = tuple(MediaSpan(begin, TOKENS, (1, SIDE, SIDE)) for begin in places[::TOKENS])
        (folder / "media/one").mkdir(parents=True)
        pages, self.encodes, self.binds = {}, [], []
        tiles = [tile for image in IMAGES for _, tile in image_items(image, read_family(checkpoint))]
        for index, pixels in enumerate(tiles):
            digest = hashlib.sha256(pixels).digest()
            if digest not in pages:
                pages[digest] = ints([len(pages), 1])
                (folder / "media/one" / digest.hex()).write_bytes(pixels)
                self.encodes.append(Encode(digest, (1, SIDE, SIDE), "one", pages[digest]))
            self.binds.append(Bind(0, index, pages[digest]))
        assert len(self.binds) == len(self.spans) > len(self.encodes) > 3


@pytest.fixture
def case(reference, checkpoint, tmp_path):
    return Case(reference, checkpoint, tmp_path)


@pytest.mark.parametrize("chunk", [3, 1 << 30])
def test_a_prompt_with_tiles_draws_the_tokens_of_transformers(vision, case, reference, chunk):
    """Tiles that come again are encoded once; positions are counted as those of text."""
    assert vision.runner._inputs.shifts is None
    assert vision.facts.media.kinds == ("image", "video")
    vision.scribe.admit(0, case.ids, spans=case.spans)
    changes, begin, drawn = {"encodes": tuple(case.encodes), "binds": tuple(case.binds)}, 0, []
    while begin < len(case.ids):
        end = min(begin + chunk, len(case.ids))
        drawn, changes, begin = vision.draw([(0, end - begin)], **changes), {}, end
    while len(drawn) < 5:
        drawn += vision.draw([(0, 1)])
    assert drawn == reference.greedy(case.inputs, 5)


def test_a_tile_of_another_size_stops_the_worker(vision):
    vision.scribe.admit(0, [5, 6, 7])
    other = Encode(bytes(32), (1, SIDE, 2 * SIDE), "one", ints([0, 2]))
    with pytest.raises(PlanError, match=rf"every item has {SIDE} rows and columns of patches, got \(1, 4, 8\)"):
        vision.run([(0, 3)], encodes=(other,))
