"""The specialized body of prefill is off until a run of it on this chip is on record, or a person says otherwise."""

import itertools
import json

import pytest
import torch

from quire.kernels.attention.attention import AttentionRule
from quire.kernels.gpu import prefill_switch, tile_table
from quire.kernels.gpu.attention import prefill
from quire.kernels.gpu.attention.tiles import select_prefill_body
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device, DeviceError
from quire.worker.start import set_prefill_body

ENTRY = {"prefill": {"specialized": {"trusted": 1}}}


@pytest.fixture
def record(tmp_path, monkeypatch):
    """`record(table)` makes this the table of the process's device; nothing is pinned."""
    monkeypatch.setattr(tile_table, "_PINNED", {})

    def write(table):
        path = tmp_path / "nvidia-h200.json"
        path.write_text(json.dumps(table))
        monkeypatch.setattr(tile_table, "_path", lambda: path)
        tile_table._table.cache_clear()

    yield write
    tile_table._table.cache_clear()


@pytest.fixture
def chosen(monkeypatch):
    """`chosen()`: whether a step that the specialized body could run goes to it."""
    bodies = []
    monkeypatch.setattr(prefill, "launch", lambda body, *_: bodies.append(body.specialized))
    query = torch.zeros(1, 3, 2, 128, dtype=torch.bfloat16)
    cache = torch.zeros(2, 128, 1, 128, dtype=torch.bfloat16)

    def run():
        prefill.prefill(query, cache, cache, None, None, AttentionRule(1.0), None, None, None, query)
        return bodies[-1]

    return run


@pytest.mark.parametrize(
    ("table", "trusted"),
    [({}, False), ({"prefill": {"specialized": {"trusted": 0}}}, False), (ENTRY, True)],
    ids=["no run on record", "switched off", "a run on record"],
)
def test_the_record_of_the_chip_decides(record, chosen, table, trusted):
    record(table)
    assert prefill_switch.is_trusted() == chosen() == trusted


@pytest.mark.parametrize(("table", "said"), [(ENTRY, False), ({}, True)])
def test_what_a_person_says_goes_before_the_record(record, chosen, table, said):
    record(table)
    prefill_switch.trust(said)
    assert chosen() == said


def test_the_option_decides_for_the_process(record, chosen):
    record(ENTRY)
    device = Device("cpu", 0)
    set_prefill_body(WorkerConfig(), device)
    assert chosen(), "auto"
    set_prefill_body(WorkerConfig(prefill_body="plain"), device)
    assert not chosen()


def test_a_body_that_is_not_for_the_chip_is_refused(record, monkeypatch):
    record({})
    with pytest.raises(DeviceError, match=r"^prefill_body: .* 9\.0, which cpu is not; use auto"):
        set_prefill_body(WorkerConfig(prefill_body="specialized"), Device("cpu", 0))
    monkeypatch.setattr(Device, "capability", 90)
    set_prefill_body(WorkerConfig(prefill_body="specialized", block_size=64), Device("cpu", 0))
    assert prefill_switch.is_trusted()


@pytest.mark.parametrize("block_size", [16, 32])
def test_a_body_that_no_page_would_take_is_refused(record, monkeypatch, block_size):
    record({})
    monkeypatch.setattr(Device, "capability", 90)
    with pytest.raises(DeviceError, match=f"block_size is {block_size}: set block_size to 64 or 128"):
        set_prefill_body(WorkerConfig(prefill_body="specialized", block_size=block_size), Device("cpu", 0))
    assert not prefill_switch.is_trusted()


def test_a_recorded_body_that_no_page_takes_says_so(record, monkeypatch, caplog):
    record(ENTRY)
    monkeypatch.setattr(Device, "capability", 90)
    set_prefill_body(WorkerConfig(block_size=64), Device("cpu", 0))
    assert not caplog.messages
    set_prefill_body(WorkerConfig(block_size=16), Device("cpu", 0))
    assert "for pages of 64 tokens and more, and block_size is 16" in caplog.text


def test_the_least_page_is_the_least_that_any_model_needs():
    def is_specialized(block_size):
        types = itertools.product((torch.bfloat16, torch.float16), (torch.bfloat16, torch.float16, torch.float8_e4m3fn))
        return any(select_prefill_body(90, block_size, head, *two).specialized for two in types for head in (64, 128))

    assert is_specialized(prefill_switch.LEAST_BLOCK_SIZE)
    assert not is_specialized(prefill_switch.LEAST_BLOCK_SIZE // 2)


def test_a_switch_that_is_not_known_is_refused(record):
    record({"prefill": {"specialized": {"on": 1}}})
    with pytest.raises(tile_table.TileTableError, match=r"unknown \['on'\], known \['trusted'\]"):
        prefill_switch.is_trusted()
