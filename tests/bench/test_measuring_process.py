"""A measurement in a process of its own leaves nothing behind, however it ends."""

import subprocess
import time
from pathlib import Path

import pytest

from quire.deploy.bench.report.errors import BenchError
from quire.deploy.bench.report.measuring_process import measure

MEASURING = """
import json, os, subprocess, sys, time
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
path = json.loads(sys.argv[1])["pids"]
open(path + ".partial", "w").write(f"{os.getpid()} {helper.pid}")
os.rename(path + ".partial", path)
if json.loads(sys.argv[1])["hangs"]:
    time.sleep(3600)
print("{}")
os.close(1)
"""


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("end", ["out of time", "interrupted", "sound"])
def test_nothing_outlives_a_measurement(end, tmp_path, monkeypatch) -> None:
    (tmp_path / "planted_measuring.py").write_text(MEASURING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    pids, communicate = tmp_path / "pids", subprocess.Popen.communicate

    def wait(process: subprocess.Popen, *arguments, **options):
        while not pids.exists():
            time.sleep(0.02)
        if end == "interrupted":
            raise KeyboardInterrupt
        if end == "out of time":
            raise subprocess.TimeoutExpired("planted", 1.0)
        process.wait()
        return process.stdout.readline(), ""

    monkeypatch.setattr(subprocess.Popen, "communicate", wait)
    options = {"pids": str(pids), "hangs": end != "sound"}
    if end == "sound":
        assert measure("planted_measuring", options) == {}
    else:
        with pytest.raises(KeyboardInterrupt if end == "interrupted" else BenchError):
            measure("planted_measuring", options, timeout_seconds=1.0)
    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    for pid in map(int, pids.read_text().split()):
        while not is_gone(pid):
            time.sleep(0.02)
