"""`quire bench tune`: what it prints of the measured choice, and its refusal where there is no GPU."""

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
    monkeypatch.setattr(tune, "measure", lambda *arguments: asked.append(arguments) or measured)
    result = bench("tune", "--operations", "linear", "--out", "tables")
    assert asked == [("quire.kernels.gpu.tuning.tune", {"operations": ["linear"], "out": "tables", "seconds": 0.0})]
    assert result["linear"] == {
        "t1": "block_o=32 parts=2: 8.0 us, 4200 GB/s, speedup 1.25",
        "t2": "cublas=1: 4.0 us, 100 GB/s",
    }
    assert result["config"]["file"] == "a-gpu.json"
    assert result["config"]["failed"] == ["linear, t3"]


def test_a_machine_without_a_gpu_is_told_so(capsys, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["bench", "tune"]) == 1
    printed = capsys.readouterr()
    assert "this machine has no CUDA device" in printed.err
