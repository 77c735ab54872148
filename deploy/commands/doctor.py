"""`quire doctor`: this machine's devices and versions, and what would be refused on it and why."""

import argparse
import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from quire.deploy.commands.checkpoint_files import (
    SUMS,
    digest_faults,
    given_files,
    has_weights,
    licence,
    missing,
    tokenizer_faults,
)
from quire.deploy.commands.gpu_needs import lacking
from quire.deploy.commands.start_plan import memory_in_words, quantization_in_words
from quire.deploy.config import FLAGS, faults, inspected
from quire.deploy.converted_tokenizer import tokenizer_fault, with_tokenizer
from quire.deploy.flags.arguments import UsageError, add_serve_arguments, gather
from quire.deploy.flags.llama_flags import LLAMA_FLAGS
from quire.deploy.flags.options import ServeOptions
from quire.deploy.flags.other_arguments import add_other_flags, notices
from quire.deploy.flags.sglang_flags import SGLANG_FLAGS
from quire.deploy.flags.sizes import parse_bytes
from quire.deploy.model_path import CONFIG_ONLY, EMBEDDED, EMBEDDED_NAME, Model, check, find
from quire.deploy.overrides import by_origin, origin
from quire.proto.process import exit_codes
from quire.proto.process.control_group import cpu_quota, num_cores
from quire.proto.process.flags import in_flags
from quire.proto.process.parent_death import PARENT_VARIABLE
from quire.proto.process.sizes import format_bytes, format_count
from quire.proto.process.version import version
from quire.proto.process.visible import visible
from quire.worker.config import WorkerConfig
from quire.worker.device.machine import bf16_products
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Fit, Place

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
LEAST_MEMORY = 1 << 20
"""Memory of a device, in bytes, below which a unit was left out."""
ASKED = (
    "hf_overrides",
    "tokenizer",
    "device",
    "model_impl",
    "load_format",
    "task",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "calculate_kv_scales",
    "tensor_parallel_size",
    "max_model_len",
    "block_size",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "language_model_only",
    "max_num_encoder_patches",
    "mm_encoder_cache_bytes",
    "mm_encoder_tp_mode",
    "enable_expert_parallel",
)
"""Options of `quire serve` on which the fit of a model depends; the others are taken, and looked at alone."""
DESCRIPTION = (
    "Look at this machine and at a model without an engine; config.json alone is enough. "
    "Takes every flag of `quire serve`. Exit code 1: something is refused."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_serve_arguments(parser, ASKED)
    add_other_flags(parser, LLAMA_FLAGS | SGLANG_FLAGS)
    parser.add_argument(
        "--device-memory",
        type=_size,
        default=0,
        metavar="SIZE",
        help="judge by a GPU of this memory, like 48GiB, that need not be here; with --device cpu, a machine of it",
    )
    parser.add_argument("--digest", action="store_true", help=f"compare the files with the {SUMS} beside them")


def run(arguments: argparse.Namespace) -> int:
    """0 when the model would run here, 1 when something would be refused."""
    _section("quire", {name: _version(name) for name in PACKAGES})
    _section(
        "machine",
        {
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "cores": _cores(),
            "CPU features": " ".join(_cpu_features()) or "none that matter here",
        },
    )
    given, options = gather(arguments)
    if taken := notices(arguments):
        _section("flags", {line.split()[0]: line.partition(" ")[2] for line in taken})
    with tempfile.TemporaryDirectory(prefix="quire-") as made:
        refusals = _judge(arguments, given, options, Path(made))
    print("refused:" if refusals else "refused: nothing")
    for refusal in dict.fromkeys(refusals):
        print(visible(f"  {refusal}"))
    return exit_codes.FAILED if refusals else exit_codes.SUCCESS


def _judge(arguments: argparse.Namespace, given: str, options: ServeOptions, made: Path) -> list[str]:
    """Print what is found of device and model; everything that is refused. `made`: for the directory of a GGUF file."""
    refusals: list[str] = []
    directory: Path | None = None
    by_headers = False
    try:
        found_model = find(given, CONFIG_ONLY, made, options.tokenizer, options.hf_overrides)
        directory = found_model.directory
        refusals += [found_model.unserved] if found_model.unserved and options.load_format != "dummy" else []
        by_headers = options.load_format != "dummy" and has_weights(directory)
        if by_headers:
            check(directory, options.load_format, Path(options.tokenizer or directory))
        options = _with_tokenizer(options, directory, made)
    except UsageError as error:
        refusals.append(str(error))
    judged = directory
    wrong, options = faults(options, Model(directory or EMBEDDED, given or EMBEDDED_NAME))
    refusals += wrong
    if directory is not None:
        refusals += tokenizer_faults(directory, options.tokenizer)
    found: dict[str, Any] = {"sections": {}, "refusals": []}
    try:
        config = inspected(options, "" if directory is None else str(directory))
        if by_headers or not arguments.device_memory:  # nothing here says more of a device that is elsewhere
            found = _inspect(config if by_headers else msgspec.structs.replace(config, model=""))
        place = _place(arguments.device_memory, options.device, found["sections"])
    except (ValueError, UsageError) as error:
        refusals.append(in_flags(str(error), FLAGS))
        directory = None
    for title, values in found["sections"].items():
        _section(title, {name: _shown(name, value) for name, value in values.items()})
    if directory is not None:
        needs, reasons = fit(config, place)
        _section("model (by config)", _model(needs, config, place, directory))
        refusals += [in_flags(reason, FLAGS) for reason in reasons]
        refusals += lacking() if place.is_gpu and not arguments.device_memory else ()
        files = given_files(directory)
        home = files[0].parent if files else origin(directory)
        refusals += digest_faults(home, {file.name for file in files}) if arguments.digest else ()
    if not refusals or not found["sections"]:  # else the worker repeats what config.json decides
        refusals += found["refusals"]
    return [_by_given_names(one, judged) for one in refusals]


def _with_tokenizer(options: ServeOptions, directory: Path, made: Path) -> ServeOptions:
    """The options with the tokenizer that the start would make, where it would make one. Raises `UsageError`."""
    given = Path(options.tokenizer or directory)
    if tokenizer_fault(given) or (found := with_tokenizer(given, directory, made)) == given:
        return options
    return replace(options, tokenizer=str(found))


def _by_given_names(refusal: str, directory: Path | None) -> str:
    """The refusal with the name of what the user gave, in place of the directory that was made of it."""
    if directory is None:
        return refusal
    files = given_files(directory)
    return refusal.replace(str(directory), str(files[0])) if files else by_origin(refusal, directory)


def _place(asked: int, device: str, sections: dict[str, Any]) -> Place:
    """The device to judge by: of the memory that was asked about, or the one that was found."""
    if asked:
        return Place(device != "cpu", asked)
    found = sections.get("device", {})
    memory = found.get("total memory")
    is_gpu = found.get("name", "cpu") != "cpu"
    return Place(is_gpu, memory if isinstance(memory, int) else None, "" if is_gpu else bf16_products())


def _model(needs: Fit | None, config: WorkerConfig, place: Place, directory: Path) -> dict[str, str]:
    """The lines of what config.json says of the model and its memory on such a device."""
    lines = {"directory": str(origin(directory))}
    files = given_files(directory)
    if files:
        lines = {"file": str(files[0])}
    if needs is not None:
        lines |= {
            "architecture": needs.spec.architecture,
            **({"modules": needs.modules} if needs.modules else {}),
            "task": needs.task,
            "parameters": f"{format_count(needs.num_parameters)} ({needs.num_parameters})",
            **({"layers": needs.layers} if needs.layers else {}),
            **({"experts": needs.experts} if needs.experts else {}),
            "dtype": needs.precision,
            "quantization": quantization_in_words(needs),
            "steps": needs.steps,
            **({"rope": needs.rope} if needs.rope else {}),
            "context length": str(needs.spec.max_model_len),
            "memory": memory_in_words(needs, config),
        }
    if needs is not None and (groups := needs.kv_split.in_words()):
        lines["KV groups"] = groups
    if needs is not None and needs.quantization == "none":
        del lines["quantization"]
    if needs is not None and needs.kv_tokens is not None and place.memory is not None:
        shown, length = format_bytes(max(0, needs.kv_bytes or 0)), needs.max_model_len
        if not config.max_model_len and 0 < needs.kv_tokens < length:
            length = needs.kv_tokens
            lines["context length"] += f", lowered to what the memory holds: at most {length}"
        lines["KV memory"] = f"at most {shown} of {format_bytes(place.memory)}, before the largest step takes its own"
        lines["concurrency"] = f"{needs.kv_tokens / length:.1f} sequences of {length} tokens, at most"
    if stated := licence(files[0].parent if files else directory):
        lines["licence"] = f"{stated}, says the model card"
    if absent := missing(directory, config.tokenizer):
        lines["not here yet"] = ", ".join(absent)
    return lines


def _size(text: str) -> int:
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size < LEAST_MEMORY:
        raise argparse.ArgumentTypeError(f"{text} is {size} bytes, and no device's memory; write it like 48GiB")
    return size


def _inspect(config: WorkerConfig) -> dict[str, Any]:
    """Facts of device and model from a process of its own: only workers import torch."""
    command = [sys.executable, "-P", "-m", "quire.worker.inspect", msgspec.json.encode(config).decode()]
    named = os.environ | {PARENT_VARIABLE: str(os.getpid())}
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=INSPECTION_SECONDS, stdin=subprocess.DEVNULL, check=False, env=named
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
        print(visible(f"  {name:<{width}}  {value}"))


def _shown(name: str, value: object) -> str:
    return format_bytes(value) if "memory" in name and isinstance(value, int) else str(value)


def _cores() -> str:
    quota = cpu_quota()
    return str(num_cores()) + (f" (of {len(os.sched_getaffinity(0))}; the quota is {quota:.3g})" if quota else "")


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
