"""A checkout on PYTHONPATH that was never installed: it has no metadata, and serves all the same."""

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from parts.clock import GUARD

HERE = Path(__file__).parent


@pytest.fixture
def plain_checkout(tmp_path, monkeypatch) -> Path:
    """For every child process from here on; the folder that holds the package."""
    subprocess.run(["sh", str(HERE.parent / "rules" / "links.sh"), str(tmp_path)], check=True)
    given = [str(tmp_path), str(HERE / "not_installed"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(given))
    return tmp_path


def printed(*arguments: str) -> str:
    return subprocess.run([sys.executable, "-P", *arguments], capture_output=True, text=True, check=True).stdout


def test_the_command_knows_that_it_does_not_know_its_version(plain_checkout):
    assert printed("-m", "quire.deploy", "--version").strip() == "quire 0+unknown"
    asked = printed("-c", "import quire; print(quire.__version__, quire.__file__)")
    assert asked.split() == ["0+unknown", str(plain_checkout / "quire" / "__init__.py")]


def test_an_engine_of_a_plain_checkout_serves_and_tells_no_version(plain_checkout, serve):
    engine = serve(fresh=True)
    with urllib.request.urlopen(f"http://{engine.http}/metrics", timeout=GUARD) as page:
        assert 'version="0+unknown"' in page.read().decode()
