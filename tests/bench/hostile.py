"""What one client can do to the others with the contents of its requests, on a machine that does nothing else:

    python tests/bench/hostile.py [--only grpc-tokenize ...]

A real frontend before a stand-in scheduler (`lone_frontend.py`). For each load, after quiet seconds: gaps between the
tokens of a neighbour's stream, the time `/health` takes, and how much the frontend grows. Bodies are made before
anything is timed, and sent as they are, so that the client takes no time from the clock. Of several rounds the calmest
counts: what the machine does besides disturbs one of them, what the frontend does all. Prints what it finds and, last,
one JSON object.
"""

import argparse
import asyncio
import http.client
import json
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import grpc
import lone_frontend
from lone_frontend import Frontend

from quire.deploy.bench.report.report import commit, machine, percentiles
from quire.proto.generated import quire_pb2 as pb

LIMIT_MS = 50.0
"""How long the event loop may stand still."""
PACE_MS = 10.0
HEALTH_SECONDS = 0.01
QUIET_SECONDS = 2.0
TEXT_BYTES = 7_800_000
MEDIUM_CHARS = 500_000
"""Just too few for a process of its own."""
MAX_MODEL_LEN = 16_384
ANSWER_SECONDS = 120.0
SPAWN = multiprocessing.get_context("spawn")


@dataclass
class Load:
    """Bodies sent at once, each over a connection of its own."""

    path: str
    """Of HTTP, or the name of a method of `quire.v1.Inference`."""
    bodies: Sequence[bytes]
    stays: float = ANSWER_SECONDS
    """Seconds after which the client leaves."""
    answers: list[str] = field(default_factory=list)
    """HTTP status or gRPC code of each."""

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.bodies))

    def run(self, frontend: Frontend) -> None:
        """Returns when all are answered or gone."""
        with ThreadPoolExecutor(len(self.bodies)) as pool:
            send = self._post if self.path.startswith("/") else self._call
            self.answers = list(pool.map(lambda body: send(frontend, body), self.bodies))

    def _post(self, frontend: Frontend, body: bytes) -> str:
        connection = http.client.HTTPConnection(frontend.http, timeout=self.stays)
        try:
            connection.request("POST", self.path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            while answer.read(1 << 20):
                pass
            return str(answer.status)
        except OSError as error:
            return type(error).__name__
        finally:
            connection.close()

    def _call(self, frontend: Frontend, body: bytes) -> str:
        options = [("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(frontend.grpc, options) as channel:
            try:
                channel.unary_unary(f"/quire.v1.Inference/{self.path}")(body, timeout=self.stays)
                return "OK"
            except grpc.RpcError as error:
                return str(error.code().name)


def repeated_keys(num_bytes: int) -> bytes:
    """Every name is another one but the last."""
    members, size = [], 0
    while size < num_bytes:
        members.append(f'"{len(members):x}":0')
        size += len(members[-1]) + 1
    return ('{"prompt": "x", "metadata": {' + ",".join([*members, members[-1]]) + "}}").encode()


def loads(seed: int) -> dict[str, Load]:
    text = lone_frontend.Texts(seed).draw(40_000)
    text = (text * (TEXT_BYTES // len(text.encode()) + 1))[: TEXT_BYTES * 9 // 10]
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hello")] * 150_000)
    turn = b'{"role":"user","content":"hello"}'
    ids = [300 + index % 1000 for index in range(1 << 20)]
    ids_text = b",".join(b"%d" % token for token in ids)
    asked = {"max_tokens": 1, "temperature": 0}
    parts = ",".join(['{"type":"text","text":"a"}'] * 6000)
    prompt = [ids[:3600]]
    return {
        "grpc-tokenize": Load("Tokenize", [pb.TokenizeRequest(text=text).SerializeToString()] * 3),
        "http-tokenize": Load("/tokenize", [json.dumps({"prompt": text}).encode()] * 3),
        "http-tokenize-medium": Load("/tokenize", [json.dumps({"prompt": text[:MEDIUM_CHARS]}).encode()] * 12),
        "http-token-strs": Load(
            "/tokenize", [json.dumps({"prompt": text[:1_500_000], "return_token_strs": True}).encode()] * 3
        ),
        "grpc-refused-chat": Load("Generate", [pb.GenerateRequest(chat=chat).SerializeToString()] * 3),
        "http-refused-chat": Load("/v1/chat/completions", [b'{"messages":[' + b",".join([turn] * 150_000) + b"]}"] * 3),
        "grpc-detokenize": Load(
            "Detokenize", [pb.DetokenizeRequest(token_ids=ids[:1_000_000]).SerializeToString()] * 4
        ),
        "http-detokenize": Load("/detokenize", [b'{"tokens":[' + ids_text + b"]}"] * 4),
        "grpc-logprobs": Load(
            "Generate",
            [
                pb.GenerateRequest(
                    prompt_token_ids=pb.TokenIds(ids=prompt[0]), max_tokens=1, prompt_logprobs=20
                ).SerializeToString()
            ]
            * 6,
        ),
        "http-logprobs": Load(
            "/v1/completions", [json.dumps({"prompt": prompt, "prompt_logprobs": 20, **asked}).encode()] * 6
        ),
        "http-stream-logprobs": Load(
            "/v1/completions",
            [json.dumps({"prompt": prompt, "prompt_logprobs": 20, "stream": True, **asked}).encode()] * 6,
        ),
        "http-stream-echo-logprobs": Load(
            "/v1/completions",
            [json.dumps({"prompt": prompt, "echo": True, "logprobs": 20, "stream": True, **asked}).encode()] * 6,
        ),
        "http-echo-logprobs": Load(
            "/v1/completions", [json.dumps({"prompt": prompt, "echo": True, "logprobs": 20, **asked}).encode()] * 6
        ),
        "repeated-key": Load("/v1/completions", [repeated_keys(165_000)] * 6, stays=1.0),
        "repeated-key-small": Load("/v1/completions", [repeated_keys(32_000)] * 20),
        "many-keys": Load("/v1/completions", [repeated_keys(8_000_000)] * 2, stays=5.0),
        "many-objects": Load(
            "/v1/completions", [b'{"prompt":"x","metadata":{"a":[' + b"{}," * 2_600_000 + b"{}]}}"] * 3
        ),
        "many-parts": Load(
            "/v1/chat/completions",
            [f'{{"messages":[{{"role":"user","content":[{parts}]}}],"max_tokens":1}}'.encode()] * 6,
        ),
        "many-ids": Load("/v1/completions", [b'{"prompt":[' + b"1," * 4_000_000 + b"1]}"] * 3),
        "unknown-fields": Load("Generate", [b"\x98\x3f\x01" * 2_600_000] * 3),
    }


@dataclass
class Readings:
    """What a clock saw, each as (end, what)."""

    gaps: list[tuple[float, float]] = field(default_factory=list)
    """Seconds between tokens of somebody else's stream."""
    probes: list[tuple[float, float]] = field(default_factory=list)
    """Seconds of `/health`."""
    sizes: list[tuple[float, float]] = field(default_factory=list)
    """MiB of the frontend."""

    def figures(self, since: float, until: float) -> dict[str, float]:
        gaps = [1e3 * took for at, took in self.gaps if at > since and at - took < until]
        probes = [1e3 * took for at, took in self.probes if at > since and at - took < until]
        sizes = [size for at, size in self.sizes if since <= at <= until] or [self.sizes[-1][1]]
        return {
            **percentiles("itl_ms", gaps, (50, 99)),
            "itl_ms_max": max(gaps, default=0.0),
            **percentiles("health_ms", probes, (50,)),
            "health_ms_max": max(probes, default=0.0),
            "rss_mib": max(sizes),
        }


class Clock:
    """Reads until told to stop, in a process of its own: the load's threads would hold its interpreter."""

    def __init__(self, frontend: Frontend, pid: int, stop: Connection) -> None:
        self._frontend = frontend
        self._pid = pid
        self._stop = stop
        self._readings = Readings()

    @staticmethod
    def process(frontend: Frontend, pid: int, stop: Connection) -> None:
        clock = Clock(frontend, pid, stop)
        asyncio.run(clock._run())
        stop.send(clock._readings)

    async def _run(self) -> None:
        host, port = self._frontend.http.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        prober = asyncio.create_task(self._probe(host, int(port)))
        body = json.dumps({"prompt": "x", "max_tokens": MAX_MODEL_LEN - 64, "stream": True}).encode()
        writer.write(_head("POST", "/v1/completions", len(body)) + body)
        last = 0.0
        while not self._stop.poll():
            line = await reader.readline()
            if line.startswith(b"data: {"):
                now = time.monotonic()
                if last:
                    self._readings.gaps.append((now, now - last))
                else:
                    self._stop.send(None)  # it reads
                last = now
            elif not line or line.startswith(b"data: ["):
                raise RuntimeError("the neighbour's stream ended")
        prober.cancel()
        writer.close()

    async def _probe(self, host: str, port: int) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        while True:
            begin = time.monotonic()
            writer.write(_head("GET", "/health", 0))
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            now = time.monotonic()
            self._readings.probes.append((now, now - begin))
            self._readings.sizes.append((now, _resident_mib(self._pid)))
            await asyncio.sleep(HEALTH_SECONDS)


def _head(method: str, path: str, length: int) -> bytes:
    kind = "Host: localhost\r\nContent-Type: application/json"
    return f"{method} {path} HTTP/1.1\r\n{kind}\r\nContent-Length: {length}\r\n\r\n".encode()


def _resident_mib(pid: int) -> float:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096 / (1 << 20)


def measure(load: Load) -> dict[str, Any]:
    """One load beside the clock, on a frontend of its own: what a load leaves behind is not the next one's."""
    stage = lone_frontend.Stage(PACE_MS, MAX_MODEL_LEN)
    ours, clocks = SPAWN.Pipe()
    with stage as frontend:
        clock = SPAWN.Process(target=Clock.process, args=(frontend, stage.pid, clocks), daemon=True)
        clock.start()
        clocks.close()  # a clock that dies is an end of the file
        ours.recv()
        time.sleep(QUIET_SECONDS)
        begin = time.monotonic()
        load.run(frontend)
        end = time.monotonic()
        time.sleep(QUIET_SECONDS)  # what goes on after the answer
        last = time.monotonic()
        ours.send(None)
        readings: Readings = ours.recv()
        clock.join()
    quiet = readings.figures(begin - QUIET_SECONDS / 2, begin)
    loaded = readings.figures(begin, end + QUIET_SECONDS / 2)
    return {
        "quiet": quiet,
        "loaded": loaded,
        "later": readings.figures(end + QUIET_SECONDS / 2, last),
        "seconds": end - begin,
        "answers": load.answers,
        "body_mib": load.num_bytes / (1 << 20),
        "grown_mib": loaded["rss_mib"] - quiet["rss_mib"],
        "value": max(loaded["itl_ms_max"], loaded["health_ms_max"]),
        "limit": LIMIT_MS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=None, help="names of loads; all of them by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1, help="of each load; the calmest counts")
    args = parser.parse_args()
    all_loads = loads(args.seed)
    if unknown := set(args.only or ()) - set(all_loads):
        parser.error(f"no load {', '.join(sorted(unknown))}; there are {', '.join(all_loads)}")
    document: dict[str, Any] = {"bench": "hostile", "machine": machine(), "commit": commit(), "seed": args.seed}
    for name in args.only or all_loads:
        rounds = [measure(all_loads[name]) for _ in range(args.rounds)]
        found = document[name] = min(rounds, key=lambda one: float(one["value"]))
        quiet, loaded = found["quiet"], found["loaded"]
        print(
            f"{name}: ITL max {quiet['itl_ms_max']:.0f} -> {loaded['itl_ms_max']:.0f} ms, /health max "
            f"{quiet['health_ms_max']:.0f} -> {loaded['health_ms_max']:.0f} ms, {found['grown_mib']:.0f} MiB more for "
            f"{found['body_mib']:.1f} MiB, {found['seconds']:.1f} s, {' '.join(sorted(set(found['answers'])))}",
            flush=True,
        )
    print(json.dumps(document))


if __name__ == "__main__":
    main()
