"""Keys on their way from the command line to the frontends, and to nobody else."""

import os
import sys
from pathlib import Path

import pytest
from parts.clock import GUARD

from quire.deploy.__main__ import main
from quire.deploy.supervisor.process import ProcessRole, SupervisedProcess

KEY = "secret-key-1234"
TELL = "import os, sys; print(os.environ.get('QUIRE_API_KEY'), os.environ.get('QUIRE_ADMIN_KEY'))"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was before, whatever the command line adds."""
    for name in ("QUIRE_API_KEY", "QUIRE_ADMIN_KEY", "VLLM_API_KEY"):
        monkeypatch.setenv(name, "")


@pytest.mark.parametrize(
    ("role", "text"), [("frontend", f"{KEY} admin-key-1234"), ("scheduler", "None None"), ("worker", "None None")]
)
def test_only_frontends_are_given_the_keys(monkeypatch, role: ProcessRole, text: str) -> None:
    monkeypatch.setenv("QUIRE_API_KEY", KEY)
    monkeypatch.setenv("QUIRE_ADMIN_KEY", "admin-key-1234")
    lines: list[str] = []
    process = SupervisedProcess(role, 0, [sys.executable, "-c", TELL], lines.append)
    process._process.wait(GUARD)
    process.close()
    assert [line.partition("] ")[2] for line in lines] == [text]


def test_keys_of_the_command_line_go_by_the_environment_with_a_warning(monkeypatch, capsys) -> None:
    monkeypatch.setenv("QUIRE_API_KEY", "first-key-1234")
    monkeypatch.setenv("VLLM_API_KEY", "second-key-1234")
    assert main(["serve", "./no-such-model", "--api-key", KEY, "fourth-key-1234"]) == 2
    captured = capsys.readouterr()
    assert "warning: --api-key is visible to every user of this machine" in captured.out
    assert KEY not in captured.out + captured.err
    assert os.environ["QUIRE_API_KEY"].split() == ["first-key-1234", "second-key-1234", KEY, "fourth-key-1234"]


@pytest.mark.parametrize("key", ["", "short", "two words of it", "schlüssel-1234"])
def test_an_unfit_key_of_the_command_line_is_one_line_without_the_key(capsys, key: str) -> None:
    assert main(["serve", "./no-such-model", "--api-key", KEY, key]) == 2
    text = f"quire: error: --api-key: key 2 must be 8 to 1024 visible ASCII characters, got {len(key)}\n"
    assert capsys.readouterr().err == text
    assert os.environ["QUIRE_API_KEY"] == ""


def test_without_any_key_nothing_is_passed_on() -> None:
    assert main(["serve", "./no-such-model"]) == 2
    assert os.environ["QUIRE_API_KEY"] == ""


@pytest.mark.parametrize("flag", ["--api-key-file", "--admin-key-file", "--ssl-certfile", "--ssl-ca-certs"])
def test_a_missing_file_of_the_door_is_one_line(capsys, tmp_path: Path, flag: str) -> None:
    extra = ["--ssl-keyfile", __file__] if flag == "--ssl-certfile" else []
    assert main(["serve", flag, str(tmp_path / "none"), *extra]) == 2
    assert capsys.readouterr().err == f"quire: error: {flag} {tmp_path / 'none'}: no readable file\n"


def test_half_a_pair_is_refused(capsys) -> None:
    assert main(["serve", "--ssl-certfile", __file__]) == 2
    assert "--ssl-certfile and --ssl-keyfile: give both or none" in capsys.readouterr().err
