"""The real process: what it imports, how it starts, drains and ends."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import zmq.asyncio
from parts import forked
from parts.clock import GUARD

from quire.deploy.config import FLAGS
from quire.frontend.config import FrontendConfig
from quire.frontend.server import ListenError
from quire.proto.api import Delta, GenerateRequest, RequestError
from quire.proto.client import AsyncClient
from quire.proto.process.flags import in_flags


def test_neither_the_frontend_nor_the_client_imports_torch():
    code = (
        "import sys, {module}; "
        "print([name for name in ('torch', 'transformers', 'quire.scheduler', 'quire.worker') if name in sys.modules])"
    )
    for module in ("quire.frontend.__main__", "quire.frontend.server", "quire.proto.client"):
        done = subprocess.run(
            [sys.executable, "-c", code.format(module=module)], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "[]", module


def test_the_client_needs_neither_zeromq_nor_a_tokenizer():
    code = "import sys, quire.proto.client; print([n for n in ('zmq', 'tokenizers', 'jinja2') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Process:
    """A frontend as the supervisor starts it. `fresh`: it imports for itself, and has its memory for itself."""

    def __init__(self, directory, scheduler_address, model_dir, fresh=False, **changes) -> None:
        self.ready_file = directory / "ready.json"
        config = {
            "scheduler_address": scheduler_address,
            "model": str(model_dir),
            "served_model_names": ["tiny"],
            "ready_file": str(self.ready_file),
            "beat_seconds": 0.05,
            **changes,
        }
        path = directory / "frontend.json"
        path.write_text(json.dumps(config))
        start = subprocess.Popen if fresh else forked.Popen
        self.process = start([sys.executable, "-m", "quire.frontend", str(path)], stderr=subprocess.PIPE, text=True)

    async def port(self, until) -> int:
        await until(lambda: self.ready_file.exists() or self.process.poll() is not None)
        return json.loads(self.ready_file.read_text())["grpc_port"]

    def resident_bytes(self) -> int:
        with open(f"/proc/{self.process.pid}/status") as file:
            line = next(line for line in file if line.startswith("VmRSS"))
        return int(line.split()[1]) << 10


def test_a_process_starts_small_serves_drains_on_sigterm_and_exits_zero(serving, tmp_path, model_dir, tokenizer):
    async def main():
        async with serving() as s:
            directory = tmp_path / "second"
            directory.mkdir()
            other = Process(directory, s.scheduler.address, model_dir, fresh=True)
            try:
                async with AsyncClient(f"127.0.0.1:{await other.port(s.until)}") as client:
                    async with asyncio.timeout(GUARD):
                        while (await client.server_info()).state != "ready":
                            await asyncio.sleep(0.01)
                    tokens = tokenizer.encode("hello world").ids
                    events = []

                    async def read() -> None:
                        async for event in client.stream(GenerateRequest(input="x")):
                            events.append(event)

                    reading = asyncio.create_task(read())
                    number = (await s.scheduler.submitted()).number
                    s.scheduler.outputs(number, [(0, 0, tokens[0])])
                    await s.until(lambda: len(events) == 2)
                    assert other.resident_bytes() < 250 << 20
                    other.process.send_signal(signal.SIGTERM)
                    await asyncio.to_thread(_read_until, other.process, "draining")
                    with pytest.raises(RequestError) as caught:
                        await client.generate(GenerateRequest(input="x"))
                    assert (caught.value.status, caught.value.reason) == ("UNAVAILABLE", "DRAINING")
                    rest = [(0, at, token) for at, token in enumerate(tokens)][1:]
                    s.scheduler.outputs(number, rest, [s.scheduler.finish(number, len(tokens))])
                    await reading
                    assert "".join(e.text for e in events if isinstance(e, Delta)) == "hello world"
                assert await asyncio.to_thread(other.process.wait, GUARD) == 0
            finally:
                other.process.kill()
                other.process.communicate()

    asyncio.run(main())


def test_a_second_sigterm_ends_the_process_now(serving, tmp_path, model_dir):
    async def main():
        async with serving() as s:
            directory = tmp_path / "second"
            directory.mkdir()
            other = Process(directory, s.scheduler.address, model_dir)
            try:
                async with AsyncClient(f"127.0.0.1:{await other.port(s.until)}") as client:
                    async with asyncio.timeout(GUARD):
                        while (await client.server_info()).state != "ready":
                            await asyncio.sleep(0.01)
                    call = asyncio.create_task(client.generate(GenerateRequest(input="x")))
                    await s.scheduler.submitted()
                    other.process.send_signal(signal.SIGTERM)
                    lines = await asyncio.to_thread(_read_until, other.process, "draining")
                    assert "1 requests are open" in lines
                    other.process.send_signal(signal.SIGTERM)
                    assert await asyncio.to_thread(other.process.wait, GUARD) == 0
                    with pytest.raises(RequestError):
                        await call
            finally:
                other.process.kill()
                other.process.communicate()

    asyncio.run(main())


def _read_until(process, word: str) -> str:
    for line in process.stderr:
        if word in line:
            return line
    raise AssertionError(f"the process ended without saying {word!r}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unknown": 1}, "unknown"),
        ({"grpc_port": 70_000}, "grpc_port"),
        ({"tokenizer": "/nowhere"}, "tokenizer.json"),
        ({"admin_key_file": "/nowhere"}, "admin_key_file: /nowhere: No such file"),
        ({"tls_cert_file": "/nowhere.pem", "tls_key_file": "/x"}, "tls_cert_file: /nowhere.pem: No such file"),
        ({"host": "203.0.113.7", "grpc_port": 1}, "cannot be opened"),
    ],
)
def test_a_wrong_configuration_ends_with_code_2_and_one_clear_line(tmp_path, model_dir, changes, message):
    started = Process(tmp_path, f"ipc://{tmp_path}/s.sock", model_dir, **changes)
    _, errors = started.process.communicate()
    assert started.process.returncode == 2
    assert message in errors
    assert "Traceback" not in errors


KILLED = "import os, sys; 'quire.frontend.chat.render_child' in sys.orig_argv and {}"


@pytest.mark.parametrize(
    ("fate", "how"), [("os.kill(os.getpid(), 9)", "was killed by SIGKILL"), ("os._exit(9)", "died")]
)
def test_a_child_that_the_machine_takes_at_the_start_is_no_refusal(tmp_path, model_dir, monkeypatch, fate, how):
    """An engine that is told so stops for good, instead of trying again."""
    (tmp_path / "sitecustomize.py").write_text(KILLED.format(fate))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    started = Process(tmp_path, f"ipc://{tmp_path}/s.sock", model_dir)
    _, errors = started.process.communicate()
    assert started.process.returncode == 1
    assert f"frontend: render child does not start: render child {how}" in errors
    assert "Traceback" not in errors


@pytest.fixture
def sockets_end(monkeypatch):
    """Of a server whose construction failed: a process that ends needs no more, its context's finaliser would wait."""
    made, real = [], zmq.asyncio.Context

    def context():
        made.append(real())
        return made[-1]

    context.instance = real.instance
    monkeypatch.setattr(zmq.asyncio, "Context", context)
    yield
    for one in made:
        one.destroy(linger=0)


@pytest.mark.usefixtures("sockets_end")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"api_key_file": "/no"}, "--api-key-file: /no: No such file or directory"),
        ({"admin_key_file": "/no"}, "--admin-key-file: /no: No such file or directory"),
        ({"tls_cert_file": "/no", "tls_key_file": "/x"}, "--ssl-certfile: /no: No such file or directory"),
        ({"tls_cert_file": "{dir}/empty", "tls_key_file": "/no"}, "--ssl-keyfile: /no: No such file or directory"),
        (
            {"tls_cert_file": "{dir}/empty", "tls_key_file": "{dir}/empty"},
            "--ssl-certfile: {dir}/empty: no PEM chain that belongs to --ssl-keyfile {dir}/empty",
        ),
        (
            {"tls_cert_file": "{dir}/empty", "tls_key_file": "{dir}/empty", "tls_client_ca_file": "/no"},
            "--ssl-ca-certs: /no: No such file or directory",
        ),
        ({"otlp_endpoint": "ftp://x"}, "--otlp-traces-endpoint: 'ftp://x' must be"),
        ({"tool_call_parser": "none"}, "--tool-call-parser: 'none' is not one of auto, "),
        ({"reasoning_parser": "none"}, "--reasoning-parser: 'none' is not one of auto, "),
        ({"chat_template": "/no"}, "--chat-template: /no: No such file or directory"),
        ({"chat_template": "{dir}/latin"}, "--chat-template: {dir}/latin: not text in UTF-8"),
        ({"chat_template": "{dir}/broken"}, "--chat-template: {dir}/broken: "),
        ({"tokenizer": "{dir}"}, "--tokenizer: {dir}/tokenizer.json: no such file"),
        ({"tokenizer": "{dir}/bad"}, "--tokenizer: {dir}/bad/tokenizer.json: not a tokenizer"),
        ({"tokenizer": "{dir}/odd"}, "{dir}/odd/tokenizer_config.json: does not read"),
        ({"run_dir": "/dev/null"}, "--run-dir /dev/null: "),
        ({"host": "203.0.113.7", "grpc_port": 1}, "--grpc-port: 203.0.113.7:1 cannot be opened"),
        ({"http_port": "{taken}"}, "--http-port: {taken} cannot be opened"),
    ],
)
def test_what_a_starting_frontend_finds_wrong_is_called_by_its_flag(serving, tmp_path, model_dir, changes, message):
    (tmp_path / "empty").touch()
    (tmp_path / "latin").write_bytes(b"\xe9")
    (tmp_path / "broken").write_text("{% if %}")
    for name, tokenizer in (("bad", "{}"), ("odd", (model_dir / "tokenizer.json").read_text())):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(tokenizer)
    (tmp_path / "odd" / "tokenizer_config.json").write_text("{")

    async def start(**config):
        async with serving(wait=False, **config):
            raise AssertionError("it started")

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        words = {"dir": str(tmp_path), "taken": held.getsockname()[1]}
        filled = {name: value.format(**words) if isinstance(value, str) else value for name, value in changes.items()}
        if "http_port" in filled:
            filled["http_port"] = words["taken"]
        with pytest.raises((ValueError, ListenError)) as caught:
            asyncio.run(start(**filled))
    assert message.format(**words) in in_flags(str(caught.value), FLAGS)


def test_the_process_says_it_with_the_flags_it_was_told(tmp_path, model_dir):
    started = Process(tmp_path, f"ipc://{tmp_path}/s.sock", model_dir, otlp_endpoint="x", flags=FLAGS)
    _, errors = started.process.communicate()
    assert started.process.returncode == 2
    assert errors.startswith("frontend: --otlp-traces-endpoint: 'x' must be")


@pytest.mark.parametrize(
    "changes",
    [
        {"scheduler_address": ""},
        {"model": ""},
        {"served_model_names": ()},
        {"max_receive_bytes": -1},
        {"default_timeout_seconds": 4000.0},
        {"beat_seconds": float("nan")},
        {"drain_seconds": -1.0},
        {"index": -1},
    ],
)
def test_the_configuration_names_the_wrong_field(changes):
    good = {"scheduler_address": "ipc:///x", "model": "/m", "served_model_names": ("m",)}
    FrontendConfig(**good)
    with pytest.raises(ValueError, match=next(iter(changes))):
        FrontendConfig(**{**good, **changes})


def test_its_ready_file_shows_that_its_loop_turns(serving, tmp_path, model_dir):
    """The supervisor's sign of life; with any scheduler or without."""

    async def main():
        async with serving() as s:
            directory = tmp_path / "second"
            directory.mkdir()
            second = Process(directory, s.scheduler.address, model_dir)
            try:
                await second.port(s.until)

                def seen() -> int:
                    return second.ready_file.stat().st_mtime_ns

                async def turns() -> None:
                    before = seen()
                    await s.until(lambda: seen() != before)

                await turns()
                s.scheduler.muted = True
                await turns()
                second.process.send_signal(signal.SIGSTOP)
                stat = Path(f"/proc/{second.process.pid}/stat")
                await s.until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
                before = seen()
                await asyncio.sleep(0.5)  # ten beats
                assert seen() == before
                second.process.send_signal(signal.SIGCONT)
                await turns()
            finally:
                second.process.kill()
                second.process.communicate()

    asyncio.run(main())
