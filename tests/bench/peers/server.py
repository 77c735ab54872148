"""The servers that are compared: how each is started on the same checkpoint, alone on the machine's cores."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path

SEQUENCES, LENGTH = 16, 1536
"""That each server has room for: sequences at a time, and tokens of each."""
START_SECONDS, STOP_SECONDS = 600.0, 600.0
QUIRE = {
    "float32": {"quire": ["--dtype", "float32"]},
    "bfloat16": {"quire": ["--dtype", "bfloat16"]},
    "int8": {"quire": ["--quantization", "int8"], "quire q8_0": []},
    "int4": {"quire q4_0": []},
}
"""Names and options. What has no option serves the GGUF file of its name, the same as llama-server."""
VLLM = ("float32", "bfloat16")
LLAMA = {"float32": ("F32",), "bfloat16": ("BF16", "F16"), "int8": ("Q8_0",), "int4": ("Q4_0",)}
"""Types of gguf's with weights of that size."""
TCMALLOC = "/usr/lib/*/libtcmalloc_minimal.so.4"


@dataclass(frozen=True, slots=True)
class Server:
    """A command that serves HTTP at `port`."""

    name: str
    width: str
    port: int
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def running(self, log: Path) -> Iterator[str]:
        """HOST:PORT once it answers; what it says goes to the log. Raises `RuntimeError` where it does not start."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | self.environment,
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _answers(self.port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{' '.join(self.command)} does not serve:\n{log.read_text()[-3000:]}")
                time.sleep(0.2)
            yield f"127.0.0.1:{self.port}"
        finally:
            _stop(process)


def first_tokens(target: str, count: int) -> list[str]:
    """The greedy answer to a fixed prompt, in words; equal weights and products have equal ones."""
    body = {"prompt": list(range(100, 132)), "max_tokens": count, "temperature": 0, "ignore_eos": True}
    return str(json.loads(_post(target, body))["choices"][0]["text"]).split()


def quire(folder: Path, name: str, width: str) -> Server:
    port, grpc_port = free_port(), free_port()
    options = QUIRE[width][name]
    model = folder if options else folder / f"{name.split()[1].upper()}.gguf"
    command = [sys.executable, "-m", "quire.deploy", "serve", str(model), *options]
    command += ["--max-num-seqs", str(SEQUENCES), "--max-model-len", str(LENGTH)]
    return Server(name, width, port, [*command, "--http-port", str(port), "--grpc-port", str(grpc_port)])


def vllm(python: Path, model: Path, width: str) -> Server:
    """As its page on CPUs recommends: every core bound, the OpenMP of Intel, TCMalloc where it is installed."""
    port = free_port()
    # `vllm serve` asks for the version of a package that is called vllm
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--dtype", width]
    command += ["--max-num-seqs", str(SEQUENCES), "--max-model-len", str(LENGTH), "--port", str(port)]
    preloaded = [*glob(TCMALLOC), *glob(str(python.parent.parent / "lib/libiomp5.so"))]
    environment = {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": ":".join(preloaded),
        "PATH": f"{python.parent}:{os.environ['PATH']}",
    }
    return Server("vLLM", width, port, command, environment)


def llama(binary: Path, model: Path, kind: str, width: str) -> Server:
    """A slot for each sequence, flash attention; batches are continuous by themselves."""
    port, threads = free_port(), str(len(os.sched_getaffinity(0)))
    command = [str(binary), "--model", str(model), "--threads", threads, "--flash-attn", "on"]
    command += ["--parallel", str(SEQUENCES), "--ctx-size", str(SEQUENCES * LENGTH)]
    # the one sampler that greedy requests need: the others would sort the vocabulary for each token
    command += ["--samplers", "temperature", "--host", "127.0.0.1", "--port", str(port)]
    return Server(f"llama-server {kind.lower()}", width, port, command)


def _answers(port: int) -> bool:
    try:
        _post(f"127.0.0.1:{port}", {"prompt": [1], "max_tokens": 1})
    except (OSError, urllib.error.HTTPError):
        return False
    return True


def _post(target: str, body: dict[str, object]) -> bytes:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://{target}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """It, and whatever it leaves behind: they are a session of their own."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
