"""`quire bench tune`: what it prints of the measured choice, and its refusal where there is no GPU."""

import pytest

from quire.deploy.__main__ import main
from quire.deploy.bench import tune


def test_the_choice_of_each_shape_is_printed_with_its_speedup(bench, monkeypatch) -> None:
    choice = {"tiles": {"block_o": 32, "parts": 2}, "us": 8.0, "default_us": 10.0, "gb_s": 4200.4}
    alone = {"tiles": {"cublas": 1}, "us": 4.0, "default_us": None, "gb_s": 100.0}
    measured = {
        "device": "a gpu",
        "file": "a-gpu.json",
        "failed": ["linear, t3"],
        "chosen": {"linear": {"t1": choice, "t2": alone}},
    }
    asked = []
    monkeypatch.setattr(tune, "measure", lambda *arguments, **options: asked.append((arguments, options)) or measured)
    result = bench("tune", "--operations", "linear", "--out", "tables")
    asks = ("quire.kernels.gpu.tuning.tune", {"operations": ["linear"], "out": "tables"})
    assert asked == [(asks, {"timeout_seconds": None})]
    assert result["linear"] == {
        "t1": "block_o=32 parts=2: 8.0 us, 4200 GB/s, speedup 1.25",
        "t2": "cublas=1: 4.0 us, 100 GB/s",
    }
    assert result["config"]["file"] == "a-gpu.json"
    assert result["config"]["failed"] == ["linear, t3"]


def test_no_time_of_our_own_ends_it_before_the_one_that_was_asked_for(bench, monkeypatch) -> None:
    asked = []
    measured = {"device": "a gpu", "file": "a-gpu.json", "failed": [], "chosen": {}}
    monkeypatch.setattr(
        tune, "measure", lambda _, *told, **options: asked.append((*told, *options.values())) or measured
    )
    bench("tune", "--seconds", "7200")
    ((options, timeout),) = asked
    assert options["seconds"] == 7200
    assert timeout >= 7200 + 3600


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_a_time_that_never_ends_is_refused(seconds, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "tune", f"--seconds={seconds}"])
    assert f"--seconds: must be a number above zero, got {seconds!r}" in capsys.readouterr().err.replace('"', "'")


def test_a_machine_without_a_gpu_is_told_so(capsys, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["bench", "tune"]) == 1
    printed = capsys.readouterr()
    assert "this machine has no CUDA device" in printed.err
