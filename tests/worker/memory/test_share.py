"""An engine's own share of a device that others use too, on a stand-in for the driver's and torch's counts."""

import logging
import re
from contextlib import nullcontext

import pytest
import torch

from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import SingleGroup
from quire.worker.memory.budget import kv_budget, memory_share
from quire.worker.memory.shortage import MemoryShortage, MemoryTaken, refusing
from quire.worker.memory.usage import MemoryUsage
from quire.worker.start import start

GIB = 1 << 30


class Card:
    """A device of 48 GiB, as this process sees it."""

    total = 48 * GIB

    def __init__(self):
        self.strangers = 0
        self.beside = 0
        """What our libraries hold of it, torch not among them."""
        self.live = self.cached = self.peak = 0
        """Of torch's."""

    def mem_get_info(self, device=None):
        return self.total - self.strangers - self.beside - self.memory_reserved(), self.total

    def memory_reserved(self, device=None):
        return self.live + self.cached

    def max_memory_reserved(self, device=None):
        return self.peak

    def reset_peak_memory_stats(self, device=None):
        self.peak = self.memory_reserved()

    def empty_cache(self):
        self.cached = 0

    def take(self, num_bytes, cached=0):
        assert num_bytes + cached <= self.mem_get_info()[0], "out of memory"
        self.live, self.cached = self.live + num_bytes, self.cached + cached
        self.peak = max(self.peak, self.memory_reserved())


@pytest.fixture
def card(monkeypatch):
    card = Card()
    for name in ("mem_get_info", "memory_reserved", "max_memory_reserved", "reset_peak_memory_stats", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, getattr(card, name))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "stand-in")
    for name in ("set_device", "Stream", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda device=None: nullcontext())
    return card


def budget(card, fraction, during=lambda: None):
    """Of an engine with 16 GiB of weights, whose worst step takes 2 GiB beside a cache of 1."""
    device, config = Device("cuda", 0), WorkerConfig(gpu_memory_utilization=fraction)
    share = memory_share(config, device, MemoryUsage(device), paged=True)
    card.beside += GIB // 4  # a communicator
    card.take(16 * GIB)

    def profile():
        during()
        card.take(0, cached=3 * GIB)
        return GIB

    return kv_budget(config, device, share, profile), share


@pytest.mark.parametrize("held", [0, 12 * GIB], ids=["alone", "beside a stranger"])
def test_what_a_stranger_holds_does_not_count(card, held):
    card.strangers = held
    num_bytes, _ = budget(card, 0.7)
    assert num_bytes == int(0.7 * card.total) - 18 * GIB - GIB // 4


def test_two_engines_of_less_than_a_half_share_a_device(card):
    first, _ = budget(card, 0.45)
    card.take(first)
    card.strangers, card.beside = card.total - card.mem_get_info()[0], 0  # the second engine sees the first's
    card.live = card.cached = card.peak = 0
    second, _ = budget(card, 0.45)
    assert second == first
    card.take(second)


def test_two_engines_that_start_together_do_not_count_each_others_growth(card, caplog):
    def other_starts():
        card.strangers += 15 * GIB

    num_bytes, _ = budget(card, 0.45, during=other_starts)
    assert num_bytes == int(0.45 * card.total) - 18 * GIB - 4 * GIB, "all that libraries could have taken, and no more"
    assert f"{15 * GIB + GIB // 4} bytes of device memory were taken by other processes" in caplog.text


def test_a_stranger_that_leaves_meanwhile_gives_nothing_to_the_share(card):
    card.strangers = 12 * GIB

    def leave():
        card.strangers = 0

    assert budget(card, 0.7, during=leave)[0] == int(0.7 * card.total) - 18 * GIB


def test_more_than_is_free_is_refused_with_both_numbers(card):
    card.strangers = 12 * GIB
    asked, free = int(0.92 * card.total), card.total - card.strangers
    with pytest.raises(
        MemoryTaken, match=rf"^gpu_memory_utilization: 0\.92 .* {asked} bytes, .* {free} bytes are free"
    ):
        budget(card, 0.92)


def test_what_others_take_while_the_weights_load_is_refused_too(card):
    with pytest.raises(MemoryTaken, match=r"bytes are free: other processes hold the rest; lower it, or end them"):
        budget(card, 0.92, during=lambda: card.take(0) or setattr(card, "strangers", 24 * GIB))


def test_a_start_that_finds_too_little_refuses_before_it_joins_or_loads(card, settings, monkeypatch):
    card.strangers = 40 * GIB
    fields = {**settings, "device": "cuda", "kv_cache_memory_bytes": 0}
    monkeypatch.setattr("quire.worker.start.load_model", lambda *_: pytest.fail("loaded"))
    with pytest.raises(MemoryTaken, match=re.escape(f"{8 * GIB} bytes are free")):
        start(WorkerConfig(**fields), 0, Device("cuda", 0), lambda: pytest.fail("joined"))


def test_a_cache_of_a_given_size_asks_for_no_share(card):
    card.strangers = 40 * GIB
    device, config = Device("cuda", 0), WorkerConfig(kv_cache_memory_bytes=GIB)
    usage = MemoryUsage(device)
    assert memory_share(config, device, usage, paged=True) is None
    assert memory_share(WorkerConfig(), device, usage, paged=False) is None, "a model without a cache asks for none"
    assert memory_share(WorkerConfig(), Device("cpu", 0), usage, paged=True) is None
    assert kv_budget(config, device, None, SingleGroup) == GIB


def test_a_share_too_small_for_the_weights_leaves_nothing(card):
    assert budget(card, 0.3)[0] < 0, "which `fit` refuses"
    assert issubclass(MemoryTaken, MemoryShortage)


def test_what_was_taken_is_held_against_what_was_promised(card, caplog):
    caplog.set_level(logging.INFO)
    num_bytes, share = budget(card, 0.7)
    card.take(num_bytes + GIB)  # the cache and its tables
    share.report()
    assert [record.levelname for record in caplog.records] == ["INFO"]
    card.beside += 2 * GIB  # graphs that took more than the largest let expect
    share.report()
    taken = card.live + card.beside
    assert caplog.records[-1].levelname == "WARNING"
    assert f"{taken} bytes are taken, of {int(0.7 * card.total)}" in caplog.messages[-1]


def test_memory_is_told_by_kind(card):
    card.strangers = 12 * GIB
    usage = MemoryUsage(Device("cuda", 0))
    card.beside += GIB // 2
    card.take(25 * GIB, cached=2 * GIB)  # weights, cache, graphs; the rest is what steps take
    told = dict(usage.kinds(16 * GIB, 8 * GIB, GIB))
    assert told == {
        "weights": 16 * GIB,
        "kv_cache": 8 * GIB,
        "graphs": GIB,
        "steps": 2 * GIB,
        "libraries": GIB // 2,
    }
    assert sum(told.values()) == card.total - card.mem_get_info()[0] - card.strangers


def test_on_the_cpu_only_what_is_known_is_told():
    assert MemoryUsage(Device("cpu", 0)).kinds(3, 5, 0) == (("weights", 3), ("kv_cache", 5))


def test_where_nobody_else_holds_memory_the_largest_fraction_is_told(card):
    card.strangers = GIB // 2  # this process's own context
    with pytest.raises(MemoryTaken, match=r"nobody else holds the rest, .* the largest that is free is 0\.98$") as told:
        budget(card, 0.999)
    assert "other processes" not in str(told.value)


def test_the_largest_fraction_that_is_told_is_one_that_starts(card):
    card.strangers = 12 * GIB
    with pytest.raises(MemoryTaken) as told:
        budget(card, 0.92)
    assert "other processes hold the rest" in str(told.value)
    largest = float(re.search(r"that is free is (\S+)$", str(told.value))[1])
    assert largest == 0.75
    assert budget(card, largest)[0] > 0


def test_a_cache_larger_than_what_the_weights_leave_is_refused_with_both_numbers(card):
    device, asked = Device("cuda", 0), 33 * GIB
    card.take(16 * GIB, cached=GIB)
    config = WorkerConfig(kv_cache_memory_bytes=asked)
    with pytest.raises(
        MemoryTaken, match=rf"^kv_cache_memory_bytes: {asked} bytes are asked for, but only {32 * GIB} are free"
    ):
        kv_budget(config, device, None, lambda: 0)
    assert kv_budget(WorkerConfig(kv_cache_memory_bytes=32 * GIB), device, None, lambda: 0) == 32 * GIB


@pytest.mark.parametrize(
    ("place", "knob"),
    [
        ("weights", "share them among more devices with tensor_parallel_size, or choose a smaller model"),
        ("cache", "lower kv_cache_memory_bytes or gpu_memory_utilization"),
        ("step", "lower max_num_batched_tokens, max_num_seqs or gpu_memory_utilization"),
        ("graphs", "lower gpu_memory_utilization, or do without them: enforce_eager"),
    ],
)
def test_an_allocation_that_fails_is_refused_with_sizes_and_the_knob_of_its_place(card, place, knob):
    card.take(40 * GIB)
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.50 GiB. GPU 0 has\nand more")
    with pytest.raises(MemoryTaken) as told, refusing(Device("cuda", 0), "loading", place):
        raise error
    assert str(told.value) == (
        "loading asked for 9.50 GiB more and ran out of device memory: 8 GiB of 48 GiB are free, "
        f"this process holds 40 GiB; {knob}, or end what else uses it"
    )


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes. Error code 12"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_every_library_says_it_in_other_words(error):
    words = r"ran out of memory: [\d.]+ GiB of .*; lower kv_cache_memory_bytes, or"
    with pytest.raises(MemoryTaken, match=words) as told, refusing(Device("cpu", 0), "a cache", "cache"):
        raise error
    assert ("asked for 64 bytes more" in str(told.value)) == ("64 bytes" in str(error))


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), OSError(2, "No such file"), KeyError("x")])
def test_other_errors_stay_what_they_are(error):
    with pytest.raises(type(error)) as told, refusing(Device("cpu", 0), "a step", "step"):
        raise error
    assert told.value is error
