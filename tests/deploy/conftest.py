"""A whole engine of stand-ins: real processes, real sockets and the real supervisor, without model and torch."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

STAND_INS = Path(__file__).parent / "stand_ins"
DEADLINE_SECONDS = 30.0


def supervise(*directories: Path) -> "subprocess.Popen[str]":
    """A supervisor process over an engine of stand-in processes in each of these directories."""
    return subprocess.Popen(
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

    def until(self, condition: Callable[[], object], what: str) -> None:
        end = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert time.monotonic() < end, f"not within {DEADLINE_SECONDS} s: {what}"
            time.sleep(0.02)

    def wait_for(self, what: str, count: int = 1) -> None:
        self.until(lambda: len(self.events(what)) >= count, f"{count} x {what}; journal {self.journal}")

    def kill(self, who: str) -> None:
        os.kill(self.pid_of(who), signal.SIGKILL)

    def finish(self) -> tuple[int, str]:
        """Exit code and everything printed."""
        output, _ = self.process.communicate(timeout=DEADLINE_SECONDS)
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
    """`deploy_together(settings, ...)`: engines under one supervisor."""
    started: list[Deployment] = []

    def start(*all_settings: dict[str, object]) -> list[Deployment]:
        directories = [tmp_path / f"d{len(started) + number}" for number in range(len(all_settings))]
        for directory, settings in zip(directories, all_settings, strict=True):
            directory.mkdir(mode=0o700)
            (directory / "journal").touch()
            (directory / "settings.json").write_text(json.dumps(settings))
        process = supervise(*directories)
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
    return lambda **settings: deploy_together(settings)[0]


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


def wait_for_ready(url: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            urllib.request.urlopen(f"{url}/ready", timeout=30).close()
            return
        except urllib.error.HTTPError as error:
            error.close()
            assert time.monotonic() < deadline, f"{url} is not ready"
            time.sleep(0.02)


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Starts `quire serve` on the model that comes with it, asks it once, scrapes it and ends it."""
    from prometheus_client.parser import text_string_to_metric_families

    run_dir = Path(tempfile.mkdtemp(prefix="quire-page-"))
    command = [sys.executable, "-P", "-m", "quire.deploy", "serve", "--grpc-port=0", "--http-port=0"]
    engine = subprocess.Popen(
        [*command, "--num-threads=1", f"--run-dir={run_dir}", "--vllm-metric-names"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert engine.stdout is not None
        lines = []
        for line in engine.stdout:
            lines.append(line)
            if "ready: " in line:
                break
        assert engine.poll() is None, "".join(lines)
        port = json.loads((run_dir / "frontend-0.ready").read_text())["http_port"]
        url = f"http://127.0.0.1:{port}"
        wait_for_ready(url)
        models = json.loads(urllib.request.urlopen(f"{url}/v1/models", timeout=30).read())
        body = json.dumps({"model": models["data"][0]["id"], "prompt": "def", "max_tokens": 3}).encode()
        request = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
        urllib.request.urlopen(request, timeout=30).read()
        text = urllib.request.urlopen(f"{url}/metrics", timeout=30).read().decode()
    finally:
        engine.send_signal(signal.SIGTERM)
        engine.communicate(timeout=60)
        shutil.rmtree(run_dir, ignore_errors=True)
    kinds: dict[str, str] = {}
    labels: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(text):
        kinds[family.name + "_total" * (family.type == "counter")] = family.type
        for sample in family.samples:
            for label, value in sample.labels.items():
                labels.setdefault(sample.name, {}).setdefault(label, set()).add(value)
    return Page(kinds, labels)
