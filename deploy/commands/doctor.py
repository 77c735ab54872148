"""`quire doctor`: this machine's devices and versions, and what would be refused on it and why."""

import argparse
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from quire.deploy.config import FLAGS, KV_DTYPES
from quire.deploy.flags.arguments import MODEL_KEY, UsageError, add_model_argument
from quire.deploy.flags.sizes import format_bytes
from quire.deploy.model_path import resolve
from quire.proto.process import exit_codes
from quire.proto.process.flags import in_flags
from quire.proto.process.version import version
from quire.worker.config import WorkerConfig

PACKAGES = ("quire", "torch", "triton", "grpcio", "protobuf", "pyzmq", "msgspec", "tokenizers", "safetensors", "numpy")
CPU_FEATURES = (
    "sse4_2",
    "avx2",
    "fma",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "sve",
)
INSPECTION_SECONDS = 120


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="show device, versions, kernels, and what would be refused",
        description="Look at this machine and at a model without an engine. Exit code 1: something is refused.",
    )
    add_model_argument(parser)
    parser.add_argument("--tokenizer", default="", metavar="DIR", help="as for `quire serve`")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="(default: %(default)s)")
    parser.add_argument("--load-format", choices=("auto", "safetensors", "dummy"), default="auto")
    parser.add_argument("--quantization", choices=("none", "int8"), default="none", help="as for `quire serve`")
    parser.add_argument("--kv-cache-dtype", choices=("auto", "fp8", "fp8_e4m3"), default="auto")
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1, metavar="N")
    parser.set_defaults(func=run)


def run(arguments: argparse.Namespace) -> int:
    """0 when the model would run here, 1 when something would be refused."""
    _section("quire", {name: _version(name) for name in PACKAGES})
    _section(
        "machine",
        {
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "cores": str(len(os.sched_getaffinity(0))),
            "CPU features": " ".join(_cpu_features()) or "none that matter here",
        },
    )
    try:
        model = resolve(vars(arguments).get(MODEL_KEY, ""), arguments.load_format, arguments.tokenizer)
    except UsageError as error:
        directory, refusals = "", [str(error)]
    else:
        directory, refusals = str(model.directory), []
    try:
        config = WorkerConfig(
            model=directory,
            tokenizer=arguments.tokenizer,
            device=arguments.device,
            load_format=arguments.load_format,
            quantization=arguments.quantization,
            kv_cache_dtype=KV_DTYPES.get(arguments.kv_cache_dtype, arguments.kv_cache_dtype),
            tensor_parallel_size=arguments.tensor_parallel_size,
            flags=FLAGS,
        )
        found = _inspect(config)
    except ValueError as error:
        found = {"sections": {}, "refusals": [in_flags(str(error), FLAGS)]}
    for title, values in found["sections"].items():
        _section(title, {name: _shown(name, value) for name, value in values.items()})
    refusals += found["refusals"]
    print("refused:" if refusals else "refused: nothing")
    for refusal in refusals:
        print(f"  {refusal}")
    return exit_codes.FAILED if refusals else exit_codes.SUCCESS


def _inspect(config: WorkerConfig) -> dict[str, Any]:
    """Facts of device and model from a process of its own: only workers import torch."""
    command = [sys.executable, "-P", "-m", "quire.worker.inspect", msgspec.json.encode(config).decode()]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=INSPECTION_SECONDS, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        return {"sections": {}, "refusals": [f"worker: no answer within {INSPECTION_SECONDS} s"]}
    if done.returncode != 0:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        return {"sections": {}, "refusals": [f"worker: exit code {done.returncode}: {last}"]}
    answer: dict[str, Any] = msgspec.json.decode(done.stdout)
    return answer


def _section(title: str, values: dict[str, str]) -> None:
    print(f"{title}:")
    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        print(f"  {name:<{width}}  {value}")


def _shown(name: str, value: object) -> str:
    return format_bytes(value) if "memory" in name and isinstance(value, int) else str(value)


def _version(package: str) -> str:
    if package == "quire":
        return version()
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cpu_features() -> list[str]:
    flags: set[str] = set()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            flags.update(value.split())
    return [feature for feature in CPU_FEATURES if feature in flags]
