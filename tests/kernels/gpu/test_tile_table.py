"""The tables of tile sizes: who gets which entry, and what a wrong file is told."""

import json

import pytest
import torch

from quire.kernels.gpu import tile_table
from quire.kernels.gpu.experts import tiles as expert_tiles

DEFAULT = {"rows": 16, "stages": 2}


@pytest.fixture
def table(tmp_path, monkeypatch):
    """`table(text)` makes this the table of the process's device."""

    def write(text):
        path = tmp_path / "some-gpu.json"
        path.write_text(text)
        monkeypatch.setattr(tile_table, "_path", lambda: path)
        tile_table._table.cache_clear()

    yield write
    tile_table._table.cache_clear()


def test_without_a_gpu_or_a_table_the_default_holds(tmp_path, monkeypatch):
    for path in (None, tmp_path / "nothing.json"):
        monkeypatch.setattr(tile_table, "_path", lambda path=path: path)
        tile_table._table.cache_clear()
        assert tile_table.tile("norm", "t1 4096", DEFAULT) == DEFAULT
    tile_table._table.cache_clear()


def test_an_entry_goes_over_the_default_and_others_do_not_see_it(table):
    table(json.dumps({"norm": {"t1 4096": {"rows": 64}}}))
    assert tile_table.tile("norm", "t1 4096", DEFAULT) == {"rows": 64, "stages": 2}
    assert tile_table.tile("norm", "t2 4096", DEFAULT) == DEFAULT
    assert tile_table.tile("rope", "t1 4096", DEFAULT) == DEFAULT
    assert DEFAULT == {"rows": 16, "stages": 2}


def test_the_file_is_read_once(table, monkeypatch):
    table(json.dumps({"norm": {"t1": {"rows": 64}}}))
    assert tile_table.tile("norm", "t1", DEFAULT)["rows"] == 64
    monkeypatch.setattr(tile_table, "read_table", None)
    assert tile_table.tile("norm", "t1", DEFAULT)["rows"] == 64


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON: it is nested too deep"),
        ("[]", "the file: expected an object"),
        ('{"norm": 3}', "norm: expected an object, got 3"),
        ('{"norm": {"t1": [1]}}', "norm, t1: expected an object"),
        ('{"norm": {"t1": {"rows": "16"}}}', "norm, t1, rows: expected a size, got '16'"),
        ('{"norm": {"t1": {"rows": true}}}', "norm, t1, rows: expected a size, got True"),
        ('{"norm": {"t1": {"rows": -1}}}', "norm, t1, rows: expected a size, got -1"),
        ('{"norm": {"t1": {"lines": 16}}}', r"norm, t1: unknown \['lines'\], known \['rows', 'stages'\]"),
    ],
)
def test_a_malformed_file_is_refused_with_its_name_and_key(table, text, told):
    table(text)
    with pytest.raises(tile_table.TileTableError, match=r"some-gpu\.json: " + told):
        tile_table.tile("norm", "t1", DEFAULT)


@pytest.mark.parametrize("kind", ["folder", "endless link"])
def test_what_cannot_be_read_is_refused_with_its_name(kind, tmp_path):
    path = tmp_path / "some-gpu.json"
    path.mkdir() if kind == "folder" else path.symlink_to(path)
    with pytest.raises(tile_table.TileTableError, match=r"some-gpu\.json: cannot be read: "):
        tile_table.read_table(path)


def test_the_file_is_named_after_the_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100-SXM4-80GB ")
    assert tile_table._path.__wrapped__() == tile_table.FOLDER / "nvidia-a100-sxm4-80gb.json"


def test_every_shipped_table_can_be_read():
    for path in tile_table.FOLDER.glob("*.json"):
        assert tile_table.read_table(path)
        assert path.stem == tile_table.slug(path.stem)


def test_shipped_entries_of_experts_are_asked_for_and_name_tiles_that_they_have(monkeypatch):
    asked = {}
    monkeypatch.setattr(expert_tiles, "tile", lambda _, shape, default: asked.setdefault(shape, default))
    for dtype in (torch.bfloat16, torch.float16):
        for gated in (False, True):
            expert_tiles.few_tiles(8, 4096, dtype, gated=gated)
            for num_pairs in range(1, 20_000, 50):
                expert_tiles.product_tiles(num_pairs, 128, dtype, gated=gated)
                expert_tiles.word_tiles(num_pairs, 128, dtype, superblocks=gated)
    for path in tile_table.FOLDER.glob("*.json"):
        for shape, tiles in tile_table.read_table(path).get("experts", {}).items():
            assert tiles.keys() <= asked[shape].keys(), (path, shape)
