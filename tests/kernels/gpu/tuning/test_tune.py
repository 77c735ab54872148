"""The tuner without a GPU: what it picks from given times, what it writes, and what it refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

import planted_trials

from quire.kernels.gpu.tile_table import read_table
from quire.kernels.gpu.tuning import tune
from quire.kernels.gpu.tuning.trial import Trial


@pytest.fixture
def tuner(monkeypatch):
    """With one process to launch candidates, so that they come in their order."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(tune, "COMPILE_SECONDS", 3.0)
    with tune.Tuner("cpu", "planted_trials:trials", num_probes=1) as made:
        yield made


def test_candidates_that_fail_hang_or_die_cost_only_themselves(tuner, tmp_path):
    path = tmp_path / "chip.json"
    chosen = tune.measure(tuner, planted_trials.trials()[:2], path, 1000.0)
    best = {"tiles": {"rows": 32}, "us": 2.0, "default_us": 4.0, "gb_s": 2.0}
    assert chosen == {"norm": {"t1": best, "t2": {**best, "default_us": None}}}
    assert read_table(path) == {"norm": {"t1": {"rows": 32}, "t2": {"rows": 32}}}
    assert [why.partition(", rows=")[2] for why in tuner.failed] == [
        "2: no answer within 3 s",
        "1: ValueError: no such tile",
        "3: RuntimeError: CUDA error: an illegal memory access was encountered",
        "4: its process ended with status 9: no room",
        "1: ValueError: no such tile",
    ]


def test_a_process_that_died_between_two_candidates_is_started_again(tuner):
    trial = planted_trials.trials()[0]
    (child,) = tuner._probes
    for _ in range(2):
        assert child.ask(trial.operation, trial.shape, 0, timed=False, seconds=30) == 0.0
        child._process.kill()
        child._process.wait()


def test_a_shape_without_any_usable_candidate_is_left_as_it_is(tuner, tmp_path):
    (trial,) = planted_trials.hopeless()
    assert tune.measure(tuner, [trial], tmp_path / "chip.json", 1000.0) == {}
    assert not list(tmp_path.iterdir())
    assert tuner.failed == ["norm, t3, rows=1: ValueError: no such tile"]


def test_no_shape_is_begun_when_the_time_is_over(tuner, tmp_path):
    assert tune.measure(tuner, planted_trials.trials(), tmp_path / "chip.json", -1.0) == {}


def test_trials_are_selected_by_operation_and_unknown_ones_refused():
    trial, other = (Trial(name, "t1", (), 0, lambda device: lambda tiles: None) for name in ("norm", "rope"))
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
    command = [sys.executable, "-m", "quire.kernels.gpu.tuning.tune", json.dumps(options)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr
