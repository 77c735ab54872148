"""An authority for certificates, and children that take 127.0.0.1 for an address of the internet."""

import sys
from pathlib import Path

import pytest

from quire.frontend.media import fetch

sys.path.insert(0, str(Path(__file__).parents[1] / "security"))  # collected in importlib mode, yet they share modules

from certificates import Authority

NAME = "loopback_fetch_child"
CHILD = """
import time
from ipaddress import ip_address
from quire.frontend.media.fetch_child import prepare
from quire.frontend.sandbox.child import serve

def resolve(host):
    if host == "stuck.example": time.sleep(600)
    return [ip_address("127.0.0.1")]

serve(lambda setup: prepare(setup, resolve, lambda address: True))
"""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The module of the children that are started from now on: every name leads to 127.0.0.1, which is public."""
    (tmp_path / f"{NAME}.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(fetch, "MODULE", NAME)
    return NAME
