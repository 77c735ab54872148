"""`quire serve`: from options to a supervised engine, with progress while it comes up."""

import argparse
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from quire.deploy.commands.report import addresses, engine_summary, ready_to_paste
from quire.deploy.commands.start_plan import few_threads, plan, refuse
from quire.deploy.config import FRONTENDS_SOCKET, WORKERS_SOCKET, Composed, compose, show
from quire.deploy.flags.arguments import UsageError, add_serve_arguments, gather
from quire.deploy.flags.llama_flags import LLAMA_FLAGS
from quire.deploy.flags.options import ServeOptions
from quire.deploy.flags.other_arguments import add_other_flags, notices
from quire.deploy.flags.sglang_flags import SGLANG_FLAGS
from quire.deploy.flags.tgi_flags import TGI_FLAGS
from quire.deploy.model_path import resolve
from quire.deploy.overrides import by_origin
from quire.deploy.supervisor.port_claim import PortClaim
from quire.deploy.supervisor.process import API_KEY_VARIABLE
from quire.deploy.supervisor.rundir import RunDir
from quire.deploy.supervisor.signals import Stopped, StopSignals
from quire.deploy.supervisor.supervised_engine import SupervisedEngine
from quire.deploy.supervisor.supervisor import Supervisor
from quire.frontend.config import KEY, FrontendConfig
from quire.proto.messages.requests import ModelFacts, Welcome
from quire.proto.process import exit_codes
from quire.proto.process.log_stream import logged

DESCRIPTION = "Start scheduler, workers and frontends for one model and serve until SIGTERM or Ctrl-C."


class QuireEngine:
    """The command lines of the three processes. Implements `quire.deploy.supervisor.engine_spec.EngineSpec`.

    Raises `UsageError` when the run directory cannot hold their configurations.
    """

    def __init__(self, composed: Composed, run_dir: RunDir) -> None:
        self.world_size = composed.scheduler.world_size
        self.num_frontends = composed.num_frontends
        self._composed = composed
        self._run_dir = run_dir
        self._ready: set[int] = set()
        """Frontends whose files said that they are ready."""
        # written now: configurations never change, other ranks may read them, and a restart must not need a disk
        self._scheduler_config = self._write("scheduler", composed.scheduler)
        self._worker_config = self._write("worker", composed.worker)
        self._frontend_configs = [
            self._write(f"frontend-{index}", self._frontend(index)) for index in range(self.num_frontends)
        ]

    def scheduler_command(self) -> list[str]:
        self._run_dir.remove_socket(FRONTENDS_SOCKET)
        self._run_dir.remove_socket(WORKERS_SOCKET)
        return _module("scheduler", self._scheduler_config)

    def worker_command(self, rank: int, epoch: int) -> list[str]:
        self._run_dir.remove_rendezvous(epoch)
        return [*_module("worker", self._worker_config), "--rank", str(rank), "--epoch", str(epoch)]

    def frontend_command(self, index: int) -> list[str]:
        self.ready_file(index).unlink(missing_ok=True)
        self._ready.discard(index)
        self._run_dir.remove_media(index)
        return _module("frontend", self._frontend_configs[index])

    def frontend_ready(self, index: int) -> bool:
        if index in self._ready:
            return True
        try:
            state: dict[str, object] = msgspec.json.decode(self.ready_file(index).read_bytes())
        except FileNotFoundError:
            return False
        if state["ready"] is True:
            self._ready.add(index)
        return index in self._ready

    def frontend_heartbeat(self, index: int) -> int:
        try:
            return self.ready_file(index).stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def supervisor_address(self) -> str:
        return self._run_dir.address(FRONTENDS_SOCKET)

    def ready_file(self, index: int) -> Path:
        """File in which frontend `index` reports its open ports and whether it takes requests."""
        return self._run_dir.path / f"frontend-{index}.ready"

    def _frontend(self, index: int) -> FrontendConfig:
        return msgspec.structs.replace(self._composed.frontend, index=index, ready_file=str(self.ready_file(index)))

    def _write(self, name: str, config: msgspec.Struct) -> Path:
        return self._run_dir.write(f"{name}.json", msgspec.json.format(msgspec.json.encode(config)))


def _module(name: str, config: Path) -> list[str]:
    # -P: the folder one stands in must not shadow packages (`proto` and `kernels` are names of published ones)
    return [sys.executable, "-P", "-m", f"quire.{name}", str(config)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_serve_arguments(parser)
    add_other_flags(parser, LLAMA_FLAGS | SGLANG_FLAGS | TGI_FLAGS)
    parser.add_argument(
        "--api-key",
        nargs="+",
        default=[],
        metavar="KEY",
        help="accepted API keys; other users of this machine can read a command line: prefer --api-key-file",
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print the configuration of every process and start nothing"
    )


def _check_files_and_ports(options: ServeOptions) -> None:
    if not 0 <= options.grpc_port <= 65_535:
        raise UsageError(f"--grpc-port: must be in [0, 65535], got {options.grpc_port}")
    if options.http_port == options.grpc_port > 0:
        raise UsageError(f"--http-port {options.http_port}: is --grpc-port, too; name another")
    if bool(options.ssl_certfile) != bool(options.ssl_keyfile):
        raise UsageError("--ssl-certfile and --ssl-keyfile: give both or none")
    for field in ("api_key_file", "admin_key_file", "ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "chat_template"):
        path = getattr(options, field)
        if path and not (Path(path).is_file() and os.access(path, os.R_OK)):
            inline = "; write the template into one" if field == "chat_template" and "{" in path else ""
            raise UsageError(f"--{field.replace('_', '-')} {path}: no readable file{inline}")


def _pass_keys_on(keys: list[str]) -> None:
    """Hand keys to the frontends by the environment; vLLM's variable counts too, or a server believed locked were open.

    Raises `UsageError`, also for the empty key of a shell's unset variable.
    """
    for number, key in enumerate(keys, 1):
        if not re.fullmatch(KEY, key):
            raise UsageError(f"--api-key: key {number} must be 8 to 1024 visible ASCII characters, got {len(key)}")
    known = [os.environ.get(API_KEY_VARIABLE, ""), os.environ.pop("VLLM_API_KEY", "")]  # workers need not know it
    if together := " ".join(filter(None, [*known, *keys])):
        os.environ[API_KEY_VARIABLE] = together


def run(namespace: argparse.Namespace) -> int:
    """The exit code. Raises `UsageError` before anything has started."""
    given_model, options = gather(namespace)
    if namespace.print_config:
        with closing(RunDir(options.run_dir)) as run_dir:
            model = resolve(
                given_model, options.load_format, run_dir.path, options.tokenizer, overrides=options.hf_overrides
            )
            print(show(compose(options, model, run_dir)))
        return exit_codes.SUCCESS
    with logged() as (out, errors):
        log = timed(out.write_line)
        for line in notices(namespace):
            log(line)
        if namespace.api_key:
            log("warning: --api-key is visible to every user of this machine; use --api-key-file or $QUIRE_API_KEY")

        def on_ready(frontend: FrontendConfig, facts: ModelFacts) -> None:
            out.write_line(ready_to_paste(frontend, facts.task, facts.by_token))

        signals: StopSignals = namespace.stop_signals
        try:
            return run_engine(given_model, options, namespace.api_key, log, errors.write_line, on_ready, signals)
        except (Stopped, KeyboardInterrupt):
            log("stopped before any process was there")
            return exit_codes.SUCCESS


def timed(out: Callable[[str], None]) -> Callable[[str], None]:
    """A writer of lines with the seconds since now before them."""
    started = time.monotonic()
    return lambda line: out(f"[{time.monotonic() - started:6.1f} s] {line}")


def run_engine(
    given_model: str,
    options: ServeOptions,
    keys: list[str],
    log: Callable[[str], None],
    relay: Callable[[str], None],
    on_ready: Callable[[FrontendConfig, ModelFacts], None],
    signals: StopSignals,
) -> int:
    """Start an engine and keep it until a signal ends it: the exit code.

    `keys` are accepted besides those of files and environment; `log` gets the plan and what happens, `relay` the lines
    of the processes; `on_ready` is called once requests are taken. Raises `UsageError`, before any process starts, for
    all that config.json and the options rule out, and until then what a stop signal raises.
    """
    _check_files_and_ports(options)
    _pass_keys_on(keys)
    log(f"model: {given_model or 'the one that ships with quire'}")
    with ExitStack() as held:
        run_dir = held.enter_context(closing(RunDir(options.run_dir)))
        grpc_port = held.enter_context(closing(PortClaim(options.host, options.grpc_port))).number
        http_port = -1
        if options.http_port >= 0:
            http_port = held.enter_context(closing(PortClaim(options.host, options.http_port, "--http-port"))).number
        options = replace(options, grpc_port=grpc_port, http_port=http_port)
        # behind the ports: a download may take an hour
        look = partial(refuse, options)
        model = resolve(
            given_model, options.load_format, run_dir.path, options.tokenizer, look, overrides=options.hf_overrides
        )
        composed = compose(options, model, run_dir)
        for line in plan(composed, run_dir):
            log(line)
        for line in few_threads(composed):
            log(line)
        engine = QuireEngine(composed, run_dir)
        log(f"starting 1 scheduler, {engine.world_size} worker(s), {engine.num_frontends} frontend(s)")

        def announce(welcome: Welcome) -> None:
            assert welcome.facts is not None
            for line in engine_summary(welcome.facts):
                log(line)
            log(addresses(composed.frontend))
            on_ready(composed.frontend, welcome.facts)

        supervised = SupervisedEngine(engine, composed.timers, log, relay, announce)
        code = Supervisor([supervised], signals).run()
        # what was relayed while the others ended stands behind the reason by now: the last words repeat it
        why = [line.strip() for line in supervised.failure.splitlines()[-1:]]
        log(by_origin(": ".join([f"stopped, exit code {code}", *why]), model.directory))
        return code
