"""The worst step of a configuration: the largest that a cache can hold, run before a worker is ready."""

import numpy as np
import pytest
import torch

from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Groups
from quire.worker.memory.budget import Capacity
from quire.worker.memory.kv_layout import kv_layout
from quire.worker.specs.spec import LayerKV
from quire.worker.start import start
from quire.worker.step.runner import Runner
from quire.worker.warm_up import held_lengths, run_worst, warm_up, worst_lengths

LAYOUT = kv_layout([LayerKV(1, 1, 8, None)], 8, torch.float32)


def test_the_memory_profile_runs_the_worst_step(settings, toy):
    config = WorkerConfig(**{**settings, "max_num_batched_tokens": 300, "max_num_seqs": 8})
    assert worst_lengths(config) == [37] * 4 + [38] * 4
    model, driver = toy(torch.randn(50, 50))
    run_worst(driver.runner, config, LAYOUT)
    assert model.asked == [8]


@pytest.mark.parametrize(
    ("num_blocks", "max_model_len", "lengths"),
    [
        (40, 256, [37] * 4 + [38] * 4),
        (39, 256, [40] * 7 + [20]),
        (40, 30, [29] * 8),
        (6, 256, [8] * 6),
        (1, 8, [7]),
    ],
)
def test_the_worst_step_of_a_cache_is_the_largest_that_it_can_hold(settings, num_blocks, max_model_len, lengths):
    config = WorkerConfig(**{**settings, "max_num_batched_tokens": 300, "max_num_seqs": 8})
    assert held_lengths(worst_lengths(config), LAYOUT, Capacity(num_blocks, max_model_len)) == lengths


@pytest.fixture
def sizes(monkeypatch):
    """Rows and tokens of each step that runs."""
    sizes, launch = [], Runner.launch

    def noting(runner, plan):
        sizes.append((len(plan.slots) // 4, sum(np.frombuffer(plan.num_tokens, np.int32))))
        return launch(runner, plan)

    monkeypatch.setattr(Runner, "launch", noting)
    return sizes


@pytest.mark.parametrize("num_bytes", [4 << 20, 100 << 10], ids=["all", "what the cache holds"])
def test_a_device_with_a_cache_of_a_given_size_runs_the_worst_step_before_it_is_ready(
    settings, num_bytes, sizes, monkeypatch
):
    monkeypatch.setattr(Device, "has_own_memory", True)
    monkeypatch.setattr(Device, "reset_peak", lambda _: None)
    config = WorkerConfig(**{**settings, "kv_cache_memory_bytes": num_bytes, "max_model_len": 64})
    facts = start(config, 0, Device("cpu", 0), Groups).facts
    assert max(sizes) == (8, min(256, 8 * facts.num_blocks))


@pytest.mark.parametrize(("num_blocks", "steps"), [(2, [(1, 8), (1, 1), (0, 0)]), (1, [])])
def test_every_device_runs_a_prompt_and_a_token_that_its_cache_holds_before_it_is_ready(
    settings, toy, sizes, num_blocks, steps
):
    _, driver = toy(torch.randn(50, 50))
    warm_up(driver.runner, WorkerConfig(**settings), LAYOUT, Capacity(num_blocks, 256), thorough=False)
    assert sizes == steps
