"""Pages of encoder memory: where rows lie, how many there are, and what is refused."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # collected in importlib mode, yet they share modules

from tiny_qwen3_vl import write_checkpoint

from quire.proto.transport.wire import ints
from quire.worker.config import WorkerConfig
from quire.worker.media.encoder_memory import EncoderMemory
from quire.worker.media.media_encoder import dealt
from quire.worker.specs.encoder_pages import PAGE_ROWS, num_pages
from quire.worker.specs.fit import fit
from quire.worker.specs.kinds.normalization import largest_image
from quire.worker.specs.needs import Place
from quire.worker.specs.registry import read_spec
from quire.worker.tables.slot_table import PlanError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("vision"))


def test_rows_follow_the_pages_in_their_order():
    memory = EncoderMemory(3, 8, torch.float32, torch.device("cpu"))
    rows = memory.row_numbers(ints([2, 1, 0, 1]), PAGE_ROWS + 2, "binds").tolist()
    assert rows == [*range(2 * PAGE_ROWS, 3 * PAGE_ROWS), 0, 1]


@pytest.mark.parametrize(
    ("pages", "tokens", "words"),
    [
        (ints([0, 1]), PAGE_ROWS + 1, "1 pages for 65 tokens"),
        (ints([0, 2]), PAGE_ROWS, "2 pages for 64 tokens"),
        (ints([0, 2**31 - 1]), 1, "2147483647 pages for 1 tokens"),
        (ints([3, 1]), 1, "outside"),
        (ints([2, 2]), PAGE_ROWS + 1, "outside"),
        (ints([-1, 1]), 1, "outside"),
        (ints([0, 3, 1, -2]), 1, "empty"),
        (ints([0]), 1, "binds"),
        (b"", 0, "0 pages for 0 tokens"),
    ],
)
def test_pages_that_do_not_fit_are_named(pages, tokens, words):
    memory = EncoderMemory(3, 8, torch.float32, torch.device("cpu"))
    with pytest.raises(PlanError, match=words):
        memory.row_numbers(pages, tokens, "binds")


def test_what_four_steps_encode_or_the_largest_image_fits_where_nothing_is_said(folder):
    vision = read_spec(folder).vision
    assert num_pages(WorkerConfig(max_num_encoder_patches=4 * 65), vision, 64, 4) == 4 * 2
    assert num_pages(WorkerConfig(max_num_encoder_patches=4), vision, 16384, 4) == 16384 // PAGE_ROWS
    page = PAGE_ROWS * vision.row_size * 4
    assert num_pages(WorkerConfig(mm_encoder_cache_bytes=3 * page - 1), vision, 16384, 4) == 2


def test_a_memory_without_a_page_is_refused_before_anything_starts(folder):
    needs, refusals = fit(WorkerConfig(model=str(folder), mm_encoder_cache_bytes=100), Place(False, 1 << 34))
    assert needs is None
    assert refusals == [
        "mm_encoder_cache_bytes: 100 bytes hold not one page of 64 rows; give at least 49152, or 0 for the default"
    ]
    needs, refusals = fit(
        WorkerConfig(model=str(folder), mm_encoder_cache_bytes=100, language_model_only=True), Place(False, 1 << 34)
    )
    assert (needs.encoder_bytes, refusals) == (0, [])


def test_the_largest_image_is_the_processors_as_far_as_the_context_holds_it(folder, tmp_path):
    vision = read_spec(folder).vision
    assert largest_image(folder, vision, 10_000) == 64
    assert largest_image(folder, vision, 50) == 50
    assert largest_image(tmp_path, vision, 10_000) == 0
    (tmp_path / "preprocessor_config.json").write_text('{"max_pixels": 16777216}')
    assert largest_image(tmp_path, vision, 262_144) == 16384


def test_items_are_dealt_by_what_they_cost():
    assert dealt([1, 9, 4, 5], 2) == [[0, 1], [2, 3]]
    assert dealt([], 3) == [[], [], []]
    assert dealt([2], 2) == [[0], []]
