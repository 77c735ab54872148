"""A whole engine of stand-ins: real processes, real sockets and the real supervisor, without model and torch."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from parts import forked
from parts.clock import GUARD, eventually
from parts.engine import LIBRARY, started

from quire.deploy.commands import convert, doctor
from quire.proto.process.parent_death import PARENT_VARIABLE
from quire.worker.specs.library import apart

STAND_INS = Path(__file__).parent / "stand_ins"


@pytest.fixture(autouse=True)
def forked_inspections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that look at a model are forked, and have all the time that a slow machine needs."""

    def run(command: list[str], timeout: float = 0.0, env: dict[str, str] | None = None, **options: Any) -> Any:
        given = {**(os.environ if env is None else env), PARENT_VARIABLE: ""}  # the fork server ties it instead
        return forked.run(command, env=given, imports=LIBRARY, **options)

    instead = SimpleNamespace(**(vars(subprocess) | {"run": run}))
    for module in (convert, doctor, apart):
        monkeypatch.setattr(module, "subprocess", instead)


def supervise(*directories: Path, popen: type["subprocess.Popen[str]"]) -> "subprocess.Popen[str]":
    """A supervisor process over an engine of stand-in processes in each of these directories."""
    return popen(
        [sys.executable, str(STAND_INS / "supervise.py"), *map(str, directories)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


class Deployment:
    """An engine of stand-in processes and its supervisor; every process leaves its pid and its doings in `journal`."""

    def __init__(self, directory: Path, process: "subprocess.Popen[str]") -> None:
        self.directory = directory
        self.journal_path = directory / "journal"
        self.process = process

    @property
    def journal(self) -> list[list[str]]:
        """Lines `what who pid ...`, in the order of time."""
        return [line.split() for line in self.journal_path.read_text().splitlines()]

    def events(self, *what: str) -> list[list[str]]:
        return [entry for entry in self.journal if entry[0] in what]

    def pid_of(self, who: str) -> int:
        """Of the newest process of that name."""
        return int([entry for entry in self.events("start") if entry[1] == who][-1][2])

    def wait_for(self, what: str, count: int = 1) -> None:
        """Until it stands so often in the journal."""
        eventually(lambda: len(self.events(what)) >= count, lambda: f"{count} x {what}; journal {self.journal}")

    def say(self, name: str, text: str = "") -> None:
        """Leave a file in the directory, which one of the processes looks for."""
        (self.directory / f"{name}.partial").write_text(text)
        (self.directory / f"{name}.partial").rename(self.directory / name)

    def wait_until_heard(self, name: str) -> None:
        """Until who looked for the file has taken it away."""
        eventually(lambda: not (self.directory / name).exists())

    def kill(self, who: str) -> None:
        os.kill(self.pid_of(who), signal.SIGKILL)

    def finish(self) -> tuple[int, str]:
        """Exit code and everything printed."""
        output, _ = self.process.communicate(timeout=GUARD)
        return self.process.returncode, output

    def living(self) -> list[str]:
        """Processes that are still there."""
        return [entry[1] for entry in self.events("start") if is_alive(int(entry[2]))]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.fixture
def runs() -> Iterator[Path]:
    """A folder with a short name: that of a test may leave too few of the 107 bytes of a socket's path."""
    with tempfile.TemporaryDirectory(prefix="q") as name:
        yield Path(name)


@pytest.fixture
def deploy_together(tmp_path: Path) -> Iterator[Callable[..., list[Deployment]]]:
    """`deploy_together(settings, ...)`: engines under one supervisor, which `popen` starts."""
    started: list[Deployment] = []

    def start(
        *all_settings: dict[str, object], popen: type["subprocess.Popen[str]"] = forked.Popen
    ) -> list[Deployment]:
        directories = [tmp_path / f"d{len(started) + number}" for number in range(len(all_settings))]
        for directory, settings in zip(directories, all_settings, strict=True):
            directory.mkdir(mode=0o700)
            (directory / "journal").touch()
            (directory / "settings.json").write_text(json.dumps(settings))
        process = supervise(*directories, popen=popen)
        started.extend(Deployment(directory, process) for directory in directories)
        return started[-len(directories) :]

    yield start
    for deployment in started:
        if deployment.process.poll() is None:
            deployment.process.kill()
            deployment.process.communicate()


@pytest.fixture
def deploy(deploy_together: Callable[..., list[Deployment]]) -> Callable[..., Deployment]:
    """`deploy(**settings)`: one engine."""
    return lambda popen=forked.Popen, **settings: deploy_together(settings, popen=popen)[0]


@dataclass(frozen=True)
class Page:
    """The metrics of a real engine that served one request."""

    kinds: dict[str, str]
    """Family name, a counter's with `_total` -> kind."""
    labels: dict[str, dict[str, set[str]]]
    """Sample name -> label -> the values it has."""

    def missing(self, expression: str) -> list[str]:
        """What a PromQL expression reads that is not on the page: metrics, their labels, bounds of buckets."""
        wrong = []
        for name, matchers in metrics_of(expression):
            family = name if name in self.kinds else re.sub(r"_(bucket|count|sum)$", "", name)
            if family not in self.kinds or (family != name and self.kinds[family] != "histogram"):
                wrong.append(name)
            for label, operator, value in matchers:
                known = self.labels.get(name)
                if label in TARGET_LABELS or known is None:
                    continue
                if label not in known or (operator == "=" and value not in known[label]):
                    wrong.append(f"{name}{{{label}{operator}{value}}}")
        return wrong


TARGET_LABELS = {"job", "instance"}
GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*(?:\{([^}]*)\})?(\s*\()?")
MATCHER = re.compile(r"(\w+)\s*(=~|!~|!=|=)\s*\"([^\"]*)\"")
KEYWORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan", "by", "without", "on", "ignoring"}


def metrics_of(expression: str) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """(metric, its matchers) of every selector: names that are neither functions nor keywords."""
    plain = re.sub(r"\[[^\]]*\]", "", GROUPING.sub("", expression))
    found = []
    for name, matchers, call in SELECTOR.findall(plain):
        if not call and name.lower() not in KEYWORDS:
            found.append((name, MATCHER.findall(matchers)))
    return found


def is_ready(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/ready", timeout=GUARD).close()
    except urllib.error.HTTPError as error:
        error.close()
        return False
    return True


@pytest.fixture(scope="session")
def page() -> Page:
    """Starts `quire serve` on the model that comes with it, asks it once, scrapes it and ends it."""
    from prometheus_client.parser import text_string_to_metric_families

    with started() as start:
        url = f"http://{start('--vllm-metric-names').http}"
        eventually(lambda: is_ready(url))
        models = json.loads(urllib.request.urlopen(f"{url}/v1/models", timeout=GUARD).read())
        body = json.dumps({"model": models["data"][0]["id"], "prompt": "def", "max_tokens": 3}).encode()
        request = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
        urllib.request.urlopen(request, timeout=GUARD).read()
        text = urllib.request.urlopen(f"{url}/metrics", timeout=GUARD).read().decode()
    kinds: dict[str, str] = {}
    labels: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(text):
        kinds[family.name + "_total" * (family.type == "counter")] = family.type
        for sample in family.samples:
            for label, value in sample.labels.items():
                labels.setdefault(sample.name, {}).setdefault(label, set()).add(value)
    return Page(kinds, labels)
