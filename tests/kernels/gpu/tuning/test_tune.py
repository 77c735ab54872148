"""The tuner without a GPU: what it picks from given times, what it writes, and what it refuses."""

import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from parts.clock import GUARD

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

import planted_trials

from quire.kernels.gpu.tile_table import read_table
from quire.kernels.gpu.tuning import trial_child, tune
from quire.kernels.gpu.tuning.trial import Trial


@pytest.fixture
def tuner(monkeypatch):
    """With one process to launch candidates, so that they come in their order."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(tune, "COMPILE_SECONDS", 3.0)
    monkeypatch.setattr(tune, "TIME_SECONDS", GUARD)
    monkeypatch.setattr(trial_child, "START_SECONDS", GUARD)
    with tune.Tuner("cpu", "planted_trials:trials", num_probes=1) as made:
        yield made


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_a_process_that_died_between_two_candidates_is_started_again(tuner):
    trial = planted_trials.trials()[0]
    (child,) = tuner._probes
    for _ in range(2):
        assert child.ask(trial.operation, trial.shape, 0, timed=False, seconds=GUARD) == 0.0
        child._process.kill()
        child._process.wait()


def test_a_shape_without_any_usable_candidate_is_left_as_it_is(tuner, tmp_path):
    (trial,) = planted_trials.hopeless()
    assert tune.measure(tuner, [trial], tmp_path / "chip.json", 1000.0) == {}
    assert not list(tmp_path.iterdir())
    assert tuner.failed == ["norm, t3, rows=1: ValueError: no such tile"]


@pytest.mark.thorough
def test_the_processes_of_one_shape_serve_the_next(tuner, tmp_path, monkeypatch):
    """They end with the thread that started them, which therefore must not end between two shapes."""
    started, popen = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **options: started.append(1) or popen(*words, **options))
    for child in (*tuner._probes, tuner._timer):
        child._command = [word.replace(":trials", ":sound") for word in child._command]
    assert set(tune.measure(tuner, planted_trials.sound(), tmp_path / "chip.json", 1000.0)["norm"]) == {"t4", "t5"}
    assert len(started) == 2


def state(pid: int) -> str:
    """Of a process: Z of one that has ended and nobody has asked for, and of one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


@pytest.mark.parametrize(
    "end", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)], ids=lambda number: number.name
)
def test_no_candidate_outlives_who_tries_it(end, tmp_path):
    # whoever runs the tests in the background may have told its children to ignore SIGINT
    code = """
import signal
import planted_trials
signal.signal(signal.SIGINT, signal.default_int_handler)
from quire.kernels.gpu.tuning import tune
with tune.Tuner("cpu", "planted_trials:hanging", 1) as tuner:
    tuner.fastest(planted_trials.hanging()[0])
"""
    mark, path = tmp_path / "mark", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONPATH": path, "PLANTED_MARK": str(mark)}
    with subprocess.Popen([sys.executable, "-c", code], env=variables, stderr=subprocess.DEVNULL) as trying:
        while not mark.exists():
            assert trying.poll() is None
            time.sleep(0.05)
        trying.send_signal(end)
        trying.wait()
        while state(int(mark.read_text())) != "Z":
            time.sleep(0.05)


def fill(path: Path, operation: str) -> None:
    for number in range(40):
        tune.write_table(path, {operation: {f"t{number}": {"tiles": {"rows": 16}}}})


def test_two_that_write_one_table_lose_nothing(tmp_path):
    path = tmp_path / "gpu.json"
    writing = [multiprocessing.get_context("fork").Process(target=fill, args=(path, name)) for name in ("norm", "rope")]
    for one in writing:
        one.start()
    for one in writing:
        one.join()
    assert {operation: len(shapes) for operation, shapes in read_table(path).items()} == {"norm": 40, "rope": 40}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("seconds", [0, -1.0, math.nan, math.inf, "60"])
def test_a_time_that_never_ends_or_is_over_is_refused(seconds):
    with pytest.raises(tune.TuneError, match=r"^seconds: .* expected a number above zero"):
        tune.main(json.dumps({"seconds": seconds}))


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
    assert {"linear", "norm_linear", "linear_f8", "linear_group_words"} <= {
        trial.operation for trial in tune.all_trials()
    }


def test_a_machine_without_cuda_and_unknown_options_are_refused(monkeypatch):
    monkeypatch.setattr(tune, "has_cuda", lambda: False)
    with pytest.raises(tune.TuneError, match="this machine has no CUDA device"):
        tune.main("{}")
    with pytest.raises(tune.TuneError, match=r"options: \['device'\] are unknown"):
        tune.main('{"device": "cuda"}')


@pytest.mark.thorough
def test_a_refusal_ends_the_program_with_a_line():
    command = [sys.executable, "-m", "quire.kernels.gpu.tuning.tune", '{"device": "cuda"}']
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "options: ['device'] are unknown" in done.stderr) == (1, True)
    assert "Traceback" not in done.stderr
