"""The soak of images, on a few of them: that everybody is looked at, and that answers are what they should be."""

import json
import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).with_name("image_soak.py")


def test_a_short_soak_looks_at_every_process_and_the_store() -> None:
    command = [sys.executable, str(SOAK), "--images", "50", "--looks", "20", "--concurrency", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    broken = {status: count for status, count in found["answers"].items() if status != "OK"}
    assert found["answers"]["OK"] == 49
    assert sum(broken.values()) == 1, "one file in fifty is cut short"
    assert list(found["looks"]) == ["20", "50"]
    for number, look in found["looks"].items():
        roles = {"quire.deploy", "quire.scheduler", "quire.worker", "quire.frontend"}
        assert roles | {"quire.frontend.media.decode.decode_child", "store"} <= set(look)
        assert all(
            look[role]["processes"] == 1 and look[role]["rss_kib"] > look[role]["anon_kib"] > 0 for role in roles
        )
        assert look["store"]["files"] == min(int(number), 49)
