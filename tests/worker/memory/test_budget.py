"""How much KV memory there is, and how long a sequence may be in it."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from quire.proto.messages.requests import ModelFacts
from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device, DeviceError
from quire.worker.device.host_memory import zeros
from quire.worker.device.parallel import Groups, SingleGroup
from quire.worker.digest import digest
from quire.worker.memory.budget import fit_capacity, kv_budget
from quire.worker.memory.kv_layout import KVGroup, KVLayout, kv_layout
from quire.worker.memory.shortage import MemoryShortage
from quire.worker.specs.spec import LayerKV


class Poor(SingleGroup):
    """Another rank has room for seven blocks."""

    def minimum(self, value):
        return min(value, 7)


POOR = Groups(tensor=Poor())


def test_a_big_table_is_zero_and_takes_huge_pages_where_there_are_any():
    table = zeros((3, 1 << 20), torch.int32, torch.device("cpu"))
    assert not table.any()
    regions = Path("/proc/self/smaps").read_text().split("VmFlags:")
    start = f"{table.data_ptr() & ~0xFFF:x}-"
    flags = next(after.split("\n")[0].split() for before, after in pairwise(regions) if start in before)
    assert "hg" in flags, "advised to be huge"
    assert "sh" not in flags, "shared memory has no huge pages here"


LAYOUT = kv_layout([LayerKV(1, 1, 8, None)], 16, torch.float32)
BLOCK_BYTES = 1024


def config(**fields):
    return WorkerConfig(block_size=16, **fields)


@pytest.mark.parametrize("groups", [POOR, Groups(pipeline=Poor())], ids=["of my stage", "of another stage"])
def test_the_poorest_rank_decides_the_number_of_blocks(groups):
    assert fit_capacity(config(), groups, 100 * BLOCK_BYTES, LAYOUT, 64).num_blocks == 7
    assert fit_capacity(config(), Groups(), 100 * BLOCK_BYTES + 999, LAYOUT, 64).num_blocks == 100


def test_the_models_own_context_is_lowered_to_what_one_sequence_can_have():
    capacity = fit_capacity(config(), POOR, 10**6, LAYOUT, 4096)
    assert (capacity.num_blocks, capacity.max_model_len) == (7, 112)


def test_a_context_length_the_user_named_is_kept_or_refused_with_both_numbers():
    assert fit_capacity(config(max_model_len=100), POOR, 10**6, LAYOUT, 4096).max_model_len == 100
    with pytest.raises(MemoryShortage, match=r"200 tokens needs 13 KiB.* enough for 112 tokens; lower"):
        fit_capacity(config(max_model_len=200), POOR, 10**6, LAYOUT, 4096)
    with pytest.raises(MemoryShortage, match="4097 is more than the model's context length 4096"):
        fit_capacity(config(max_model_len=4097), Groups(), 10**9, LAYOUT, 4096)


def test_two_groups_share_the_blocks_and_each_has_its_block_size():
    layer = LayerKV(1, 1, 8, None)
    small, large = KVGroup((0,), (layer,), 8, torch.float32), KVGroup((1,), (layer,), 16, torch.float16)
    layout = KVLayout((small, large))
    assert (layout.block_bytes, layout.block_sizes) == (512, (8, 16))
    for num_blocks in range(12):
        held = layout.tokens_in(num_blocks, 1000)
        assert layout.blocks_for(held) <= num_blocks < layout.blocks_for(held + 1)
    capacity = fit_capacity(config(), Groups(), 8 * 512, layout, 4096)
    assert (capacity.num_blocks, capacity.max_model_len) == (8, 40)
    with pytest.raises(AssertionError, match="pages differ"):
        KVLayout((small, KVGroup((1,), (layer,), 16, torch.float32)))


def test_no_room_for_a_single_block_is_refused():
    with pytest.raises(MemoryShortage, match="enough for 0 tokens"):
        fit_capacity(config(), Groups(), -5, LAYOUT, 4096)


def test_the_budget_is_what_was_configured_or_a_bounded_share_of_free_memory():
    device = Device("cpu", 0)
    assert kv_budget(config(kv_cache_memory_bytes=12345), device, None, lambda: 0) == 12345
    budget = kv_budget(config(), device, None, lambda: 0)
    assert 0 < budget <= min(4 << 30, device.free_memory() // 2)


def test_cuda_without_a_device_is_refused_with_a_remedy():
    device = Device("auto", 0)
    if not device.is_cuda:
        with pytest.raises(DeviceError, match="use cpu or auto"):
            Device("cuda", 0)


def test_the_digest_differs_with_what_must_agree_and_only_with_that():
    facts = ModelFacts(
        max_model_len=1,
        vocab_size=2,
        eos_token_ids=(),
        num_blocks=3,
        block_sizes=(16,),
        kv_bytes=4,
        weight_bytes=5,
        device="cpu",
        dtype="float32",
        architecture="a",
        revision="r",
    )
    same = digest(config(), facts)
    assert same == digest(config(), facts, ()) != digest(config(), facts, (0.5,)) != digest(config(), facts, (0.25,))
    assert digest(config(log_level="debug", num_threads=3), facts) == same
    assert digest(config(max_num_seqs=9), facts) != same
