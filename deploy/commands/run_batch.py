"""`quire run-batch`: a file of requests to a file of answers, by a running server or by an engine for this alone."""

import argparse
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from quire.deploy.batch.answers_file import AnswersFile
from quire.deploy.batch.requests_file import Sendable, Unsendable, read_requests
from quire.deploy.batch.run import BatchRun
from quire.deploy.batch.server import Gone, Server
from quire.deploy.commands.connect import first_key
from quire.deploy.commands.serve import run_engine, timed
from quire.deploy.flags.arguments import UsageError, add_serve_arguments, gather
from quire.deploy.flags.options import ServeOptions
from quire.deploy.supervisor.signals import StopSignals
from quire.frontend.config import FrontendConfig
from quire.proto.messages.requests import ModelFacts
from quire.proto.process import exit_codes
from quire.proto.process.log_stream import logged

CONCURRENCY = 128
MAX_CONCURRENCY = 1024
LOCAL = "127.0.0.1"
DESCRIPTION = (
    "Answer every request of a JSONL file in OpenAI's batch format (custom_id, method, url, body). "
    "Starts an engine on MODEL for this alone, with the flags of `quire serve`; --url asks a running one instead."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-i", "--input-file", required=True, metavar="IN", help="JSONL, a request per line")
    parser.add_argument(
        "-o", "--output-file", required=True, metavar="OUT", help="JSONL, an answer per line as they come"
    )
    parser.add_argument("--resume", action="store_true", help="go on with an OUT that is there: what it has is kept")
    parser.add_argument("--url", default="", metavar="URL", help="a running server, like http://localhost:8000")
    parser.add_argument("--tls-ca-file", default="", metavar="FILE", help="PEM; who signed the certificate of --url")
    parser.add_argument(
        "--concurrency",
        type=int,
        default=CONCURRENCY,
        metavar="N",
        help="requests under way at once, and held in memory (default: %(default)s)",
    )
    add_serve_arguments(parser)


@dataclass(frozen=True)
class _Batch:
    """The files, and how they are worked through."""

    requests: Iterator[Sendable | Unsendable]
    answers: AnswersFile
    concurrency: int
    log: Callable[[str], None]

    def run(self, connect: Callable[[threading.Event], Server]) -> BatchRun:
        return BatchRun(self.requests, self.answers, connect, self.concurrency, self.log)


def run(arguments: argparse.Namespace) -> int:
    """0 when every request got its answer, 1 otherwise. Raises `UsageError` for what must be changed first."""
    with logged() as (_, errors):
        return _run(arguments, errors.write_line)


def _run(arguments: argparse.Namespace, relay: Callable[[str], None]) -> int:
    log = timed(relay)
    model, options = gather(arguments)
    if not 1 <= arguments.concurrency <= MAX_CONCURRENCY:
        raise UsageError(f"--concurrency: must be in [1, {MAX_CONCURRENCY}], got {arguments.concurrency}")
    url, context = _server(arguments, model, options)
    source, target = Path(arguments.input_file), Path(arguments.output_file)
    if source.exists() and target.exists() and source.samefile(target):
        raise UsageError(f"-o {target}: is the file of requests; name another one")
    try:
        file = source.open("rb")
    except OSError as error:
        raise UsageError(f"-i {source}: {error.strerror}") from error
    with file, AnswersFile(target, arguments.resume) as answers:
        done = answers.take_up()
        if done:
            log(f"{len(done)} answers are there already")
        requests = read_requests(file, done)
        first = next(requests, None)
        if first is None:
            log("no request is left to answer")
            return exit_codes.SUCCESS
        batch = _Batch(chain([first], requests), answers, arguments.concurrency, log)
        known = os.environ.get("QUIRE_API_KEY") or os.environ.get("VLLM_API_KEY") or ""
        key = first_key(options.api_key_file) or known.partition(" ")[0] or None
        if url is None:
            return _with_engine(batch, model, options, key, relay, arguments.stop_signals)
        return _end(batch.run(lambda stop: Server(url, key, context, stop)), log)


def _server(
    arguments: argparse.Namespace, model: str, options: ServeOptions
) -> tuple[SplitResult | None, ssl.SSLContext | None]:
    """The server of --url, and what https needs; None for an engine of this command's own. Raises `UsageError`."""
    if not arguments.url:
        return None, None
    if model or replace(options, api_key_file="") != ServeOptions():
        raise UsageError("--url: asks an engine that runs already; leave MODEL and the flags of an engine out")
    url = urlsplit(arguments.url.rstrip("/").removesuffix("/v1"))
    try:
        is_right = url.scheme in ("http", "https") and bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        is_right = False
    if not is_right:
        raise UsageError(f"--url: must be http(s)://HOST:PORT, got {arguments.url!r}")
    if url.scheme == "http":
        return url, None
    try:
        return url, ssl.create_default_context(cafile=arguments.tls_ca_file or None)
    except OSError as error:
        raise UsageError(f"--tls-ca-file {arguments.tls_ca_file}: {error}") from error


def _end(work: BatchRun, log: Callable[[str], None]) -> int:
    """Work to the end: the exit code."""
    try:
        work.run()
    except (Gone, OSError) as error:
        log(f"stopped: {error}; what is answered stays, --resume goes on ({work.num_answered + work.num_failed} lines)")
        return exit_codes.FAILED
    return exit_codes.FAILED if work.num_failed else exit_codes.SUCCESS


def _with_engine(
    batch: _Batch,
    model: str,
    options: ServeOptions,
    key: str | None,
    relay: Callable[[str], None],
    signals: StopSignals,
) -> int:
    """Start an engine on this machine alone, work through the batch, and end it: the exit code."""
    works: list[tuple[BatchRun, threading.Thread]] = []
    ends: list[int] = []

    def on_ready(frontend: FrontendConfig, facts: ModelFacts) -> None:
        url = urlsplit(f"http://{LOCAL}:{frontend.http_port}")
        work = batch.run(lambda stop: Server(url, key, None, stop))

        def work_and_end() -> None:
            ends.append(_end(work, batch.log))
            signals.count += 1  # the engine has done its work

        works.append((work, threading.Thread(target=work_and_end, daemon=True)))
        works[-1][1].start()

    options = replace(options, host=LOCAL, http_port=0, grpc_port=0, ssl_certfile="", ssl_keyfile="", ssl_ca_certs="")
    code = run_engine(model, options, [], batch.log, relay, on_ready, signals)
    interrupted = not ends
    with signals.counted():
        for work, thread in works:
            work.stop.set()
            thread.join()
    if code or not works:
        return code or exit_codes.INTERRUPTED
    return exit_codes.INTERRUPTED if interrupted else ends[0]
