"""The plan of a start: what will be served and what it takes, or why it cannot be, before any process is there."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from quire.deploy.commands.gpu_needs import doubts, lacking
from quire.deploy.commands.report import addresses, url_of
from quire.deploy.config import FLAGS, Composed, inspected, show
from quire.deploy.flags.arguments import UsageError
from quire.deploy.flags.options import ServeOptions
from quire.deploy.overrides import by_origin
from quire.deploy.supervisor.rundir import RunDir
from quire.proto.process.control_group import num_cores, thread_limits
from quire.proto.process.flags import in_flags
from quire.proto.process.sizes import format_bytes, format_count
from quire.worker.config import WorkerConfig
from quire.worker.device.machine import bf16_products, machine_bytes
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Fit, Place

OWN_THREADS, FRONTEND_THREADS, WORKER_THREADS = 12, 48, 24
"""Processes and threads at most, a few to spare: of supervisor and scheduler, of a frontend with its children, and of a
worker beside those that compute.
"""
NVIDIA = Path("/dev/nvidiactl")
"""A file that is there where NVIDIA's driver is loaded."""


def plan(composed: Composed, run_dir: RunDir) -> Iterator[str]:
    """The lines of the plan; the whole configuration goes into `config.yaml` of the run directory.

    Raises `UsageError` for all that config.json and the flags rule out, and for a run directory that cannot be written.
    """
    needs = _fitting(composed.worker)
    written = run_dir.write("config.yaml", f"{show(composed)}\n".encode())
    yield f"model: {in_words(needs)}"
    if needs.modules:
        yield f"modules: {needs.modules}"
    yield f"memory: {memory_in_words(needs, composed.worker)}"
    if needs.quantization != "none":
        yield f"quantization: {quantization_in_words(needs)}"
    yield f"steps: {needs.steps}"
    if needs.rope:
        yield in_flags(f"rope: {needs.rope}", FLAGS)
    if place_of(composed.worker).is_gpu:
        yield from doubts(composed.worker.tensor_parallel_size)
    yield addresses(composed.frontend, "will listen")
    if composed.frontend.http_port >= 0:
        yield f"page: {url_of(composed.frontend)}/ shows requests, memory and speed"
    yield f"configuration: {written}; --print-config shows it"


def few_threads(composed: Composed) -> Iterator[str]:
    """A warning for each limit of processes and threads that leaves fewer than the engine may take."""
    needed = OWN_THREADS + FRONTEND_THREADS * composed.num_frontends
    needed += (WORKER_THREADS + num_cores()) * composed.scheduler.world_size
    for limit in thread_limits():
        if limit.num_left < needed:
            yield (
                f"warning: {limit.num_left} processes and threads are left ({limit.words}), and this engine may take "
                f"{needed}; where none is left requests fail, then processes: raise it (docker run --pids-limit)"
            )


def refuse(options: ServeOptions, directory: Path) -> None:
    """Raise `UsageError` for all that config.json and the options rule out; no weight needs to be there."""
    try:
        config = inspected(options, str(directory))
    except ValueError as error:
        raise UsageError(in_flags(str(error), FLAGS)) from error
    _fitting(config)


def _fitting(config: WorkerConfig) -> Fit:
    place = place_of(config)
    needs, refusals = fit(config, place)
    refusals += lacking() if place.is_gpu else ()
    if refusals:
        message = "\n  ".join(in_flags(refusal, FLAGS) for refusal in refusals)
        raise UsageError(by_origin(message, Path(config.model)))
    assert needs is not None
    return needs


def place_of(config: WorkerConfig) -> Place:
    """The device, as far as it is known without asking it."""
    is_gpu = config.device == "cuda" or (config.device == "auto" and NVIDIA.exists())
    return Place(True, None) if is_gpu else Place(False, machine_bytes("MemTotal"), bf16_products())


def in_words(needs: Fit) -> str:
    """Architecture, size, task and context of a model."""
    return (
        f"{needs.spec.architecture}, {format_count(needs.num_parameters)} parameters, {needs.task}, "
        f"context of {needs.max_model_len} tokens"
    )


def quantization_in_words(needs: Fit) -> str:
    """The plan of a quantization: each form with its bytes on a rank, those that read alike together."""
    alike: Counter[str] = Counter()
    for form, num_bytes in needs.forms:
        alike[str(form)] += num_bytes
    forms = [f"{format_bytes(num_bytes)} {form}" for form, num_bytes in alike.items()]
    if needs.undivided:
        forms.append(f"of that {needs.undivided} layers whose inputs divide into no groups")
    finer = "; the activations of 4 bits that the checkpoint states are not made, they stay finer" * needs.finer
    return f"{needs.quantization}: {', '.join(forms)}{finer}"


def memory_in_words(needs: Fit, config: WorkerConfig) -> str:
    """Memory of one rank, as config.json says."""
    each = " on each rank" if config.tensor_parallel_size > 1 else ""
    text = f"weights {format_bytes(needs.weight_bytes)} in {needs.weight_types}{each}"
    if needs.encoder_bytes:
        text += f", encoder memory {format_bytes(needs.encoder_bytes)}"
    if not needs.token_bytes:
        return f"{text}, no KV cache"
    text += f", KV cache {format_bytes(needs.token_bytes)} a token in {needs.kv_dtype}"
    text += f" with {needs.kv_scales}" if needs.kv_scales else ""
    if needs.kv_tokens is not None:
        text += f": {needs.kv_tokens} tokens"
    return text
