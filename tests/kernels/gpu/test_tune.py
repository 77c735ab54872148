"""The tuner without a GPU: what it picks from given times, what it writes, and what it refuses."""

import json
import os
import subprocess
import sys

import pytest
import torch

from quire.kernels.gpu import tune
from quire.kernels.gpu.tiles import Trial, read_table

CPU = torch.device("cpu")


@pytest.fixture
def trial():
    """Launches return their tiles."""
    candidates = ({"rows": 16}, {"rows": 32}, {"rows": 64})
    return Trial("norm", "t1", candidates, 4000, lambda device: lambda tiles: (device, tiles["rows"]))


def timer(times):
    return lambda launch: times[launch()]


def test_the_fastest_candidate_is_chosen_and_compared_with_the_default(trial):
    choice = tune.choose(trial, CPU, timer({(CPU, 16): 4.0, (CPU, 32): 2.0, (CPU, 64): 3.0}))
    assert choice == {"tiles": {"rows": 32}, "us": 2.0, "default_us": 4.0, "gb_s": 2.0}


def test_candidates_the_chip_cannot_hold_are_passed_over(trial):
    choice = tune.choose(trial, CPU, timer({(CPU, 16): None, (CPU, 32): None, (CPU, 64): 3.0}))
    assert choice["tiles"] == {"rows": 64}
    assert choice["default_us"] is None
    with pytest.raises(tune.TuneError, match="norm, t1: no candidate"):
        tune.choose(trial, CPU, lambda launch: None)


def test_trials_are_selected_by_operation_and_unknown_ones_refused(trial):
    other = Trial("rope", "t1", (), 0, trial.prepare)
    assert tune.select([trial, other], []) == [trial, other]
    assert tune.select([trial, other], ["rope"]) == [other]
    with pytest.raises(tune.TuneError, match=r"\['attend'\] have no trials; known: \['norm', 'rope'\]"):
        tune.select([trial, other], ["norm", "attend"])


def test_the_table_keeps_what_was_not_measured_again(tmp_path):
    path = tmp_path / "new" / "gpu.json"
    tune.write_table(path, {"norm": {"t1": {"tiles": {"rows": 16}}, "t2": {"tiles": {"rows": 8}}}})
    tune.write_table(path, {"norm": {"t1": {"tiles": {"rows": 32}}}, "rope": {"t1": {"tiles": {"rows": 4}}}})
    assert read_table(path) == {"norm": {"t1": {"rows": 32}, "t2": {"rows": 8}}, "rope": {"t1": {"rows": 4}}}
    assert list(path.parent.iterdir()) == [path]


def test_the_linear_layers_have_trials():
    assert {"linear", "norm_linear"} <= {trial.operation for trial in tune.all_trials()}


@pytest.mark.parametrize(
    ("options", "told"),
    [({}, "this machine has no CUDA device"), ({"device": "cuda"}, "options: ['device'] are unknown")],
)
def test_a_machine_without_cuda_and_unknown_options_are_refused(options, told):
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "quire.kernels.gpu.tune", json.dumps(options)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr
