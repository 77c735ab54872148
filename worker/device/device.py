"""The one place that knows which device this is: its choice, threads, memory, copies, streams and graphs."""

import contextlib
import logging
import os
import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol

import numpy.typing as npt
import torch

from quire.kernels import chips
from quire.kernels.cpu.tape import Tape, record
from quire.proto.process.sizes import format_bytes
from quire.worker.config import Dtype, KVDtype
from quire.worker.device.cpu_affinity import share_of_cores
from quire.worker.device.host_memory import lock
from quire.worker.device.machine import bf16_products, machine_bytes
from quire.worker.device.marks import CudaMark, HostMark, Mark, Start
from quire.worker.fields import DtypeName
from quire.worker.specs.needs import Place, refuse_kv_dtype, resolved_dtype

_log = logging.getLogger(__name__)

_NAMES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_KV_NAMES = {**_NAMES, "int8": torch.int8}


class DeviceError(ValueError):
    """The device or number format that was asked for is not to be had here."""


Pool = tuple[int, int]


class Graph(Protocol):
    """Recorded work of the device."""

    def replay(self) -> None:
        """Queue it again, on whatever its buffers now hold."""
        ...

    def pool(self) -> Pool: ...

    def reset(self) -> None:
        """Give back all it holds; it is not replayed again."""
        ...


class Device:
    """One interface to cpu and cuda: its users ask it, instead of asking which it is."""

    def __init__(self, wanted: Literal["auto", "cpu", "cuda"], rank: int) -> None:
        """Raises `DeviceError` when CUDA is asked for and there is no device for this rank."""
        unserved = chips.unserved()
        self.is_cuda = wanted != "cpu" and chips.has_cuda()
        if wanted == "cuda" and not self.is_cuda:
            raise DeviceError(
                f"device: cuda is asked for but {unserved or 'torch sees no CUDA device'}; use cpu or auto"
            )
        if wanted == "auto" and unserved:
            _log.warning("device: %s", unserved)
        if self.is_cuda and rank >= torch.cuda.device_count():
            raise DeviceError(
                f"tensor_parallel_size: rank {rank} has no device, torch sees {torch.cuda.device_count()}; lower it"
            )
        self.torch = torch.device("cuda", rank) if self.is_cuda else torch.device("cpu")
        self._side_stream: torch.cuda.Stream | None = None
        self._ready_for_next: torch.cuda.Event | None = None
        self._encode_stream: torch.cuda.Stream | None = None
        self._rows_taken: torch.cuda.Event | None = None
        self._peek_stream: torch.cuda.Stream | None = None
        if self.is_cuda:
            torch.cuda.set_device(self.torch)
            self._side_stream = torch.cuda.Stream(self.torch)  # type: ignore[no-untyped-call]
            self._encode_stream = torch.cuda.Stream(self.torch)  # type: ignore[no-untyped-call]
            self._peek_stream = torch.cuda.Stream(self.torch)  # type: ignore[no-untyped-call]

    @property
    def compiles(self) -> bool:
        """True where kernels are compiled when they are first called."""
        return self.is_cuda

    @property
    def works_beside(self) -> bool:
        """True where the host is free while the device works; elsewhere a thread beside it takes the device's cores."""
        return self.is_cuda

    @property
    def records_graphs(self) -> bool:
        """True where work can be recorded and replayed as one graph."""
        return self.is_cuda

    @property
    def records_tapes(self) -> bool:
        """True where the calls of a step can be noted once and made again by one."""
        return not self.is_cuda

    @property
    def has_own_memory(self) -> bool:
        """True where the device's memory is apart from the host's, so that the engine's part can be measured."""
        return self.is_cuda

    @property
    def capability(self) -> int | None:
        """90 for compute capability 9.0; None on the CPU."""
        if not self.is_cuda:
            return None
        major, minor = torch.cuda.get_device_capability(self.torch)
        return 10 * major + minor

    @property
    def name(self) -> str:
        """Name in the facts, which the scheduler and the user see."""
        return torch.cuda.get_device_name(self.torch) if self.is_cuda else "cpu"

    def dtype(self, wanted: Dtype, checkpoint: DtypeName) -> torch.dtype:
        """auto: the checkpoint's on CUDA; on CPU bfloat16 where both checkpoint and processor have it, else float32."""
        if wanted == "auto":
            place = Place(self.is_cuda, None, "" if self.is_cuda else bf16_products())
            return _NAMES[resolved_dtype(wanted, checkpoint, place)]
        if wanted == "float16" and not self.is_cuda and not torch.ops.mkldnn._is_mkldnn_fp16_supported():
            _log.warning("dtype: float16 has no fast product on this processor; bfloat16 and float32 do")
        return _NAMES[wanted]

    def kv_dtype(self, wanted: KVDtype, model: torch.dtype) -> torch.dtype:
        """auto: the model's. Raises `DeviceError` for what this device has no kernels for."""
        if wanted == "auto":
            return model
        if refusal := refuse_kv_dtype(wanted, str(model).removeprefix("torch."), is_gpu=self.is_cuda):
            raise DeviceError(refusal)
        if wanted in _KV_NAMES:
            return _KV_NAMES[wanted]
        if self.capability is not None and self.capability < 89:
            raise DeviceError(f"kv_cache_dtype: {self.name} has no 8-bit floats (compute capability 8.9); use bfloat16")
        return torch.float8_e4m3fn

    def set_threads(self, wanted: int, rank: int, num_ranks: int) -> int:
        """Use `wanted` CPU threads, or for 0 this rank's share of the cores; the number used.

        Ranks on the CPU are pinned to their shares. Call it before the first parallel loop.
        """
        threads, cores = share_of_cores(rank, 1 if self.is_cuda else num_ranks, wanted)
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)
        return threads

    def upload(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """A device copy of a host array, without waiting for the device. On the CPU it is the array itself."""
        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(self.torch, non_blocking=True) if self.is_cuda else tensor

    def upload_buffers(self, num_bytes: int, depth: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        """`depth` host buffers to write in turn and the device buffer they are copied to; on the CPU all are one."""
        if not self.is_cuda:
            both = torch.zeros(num_bytes, dtype=torch.uint8)
            return [both], both
        hosts = [torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(depth)]
        return hosts, torch.zeros(num_bytes, dtype=torch.uint8, device=self.torch)

    def fetch(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Host copies of device tensors; on CUDA they mean something only after a mark made later has passed."""
        if not self.is_cuda:
            return list(tensors)
        hosts = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
        for host, tensor in zip(hosts, tensors, strict=True):
            host.copy_(tensor, non_blocking=True)
        return hosts

    def peek(self, tensor: torch.Tensor) -> torch.Tensor:
        """A host copy of what a device tensor holds by now: work that is queued before or behind is not waited for."""
        if self._peek_stream is None:
            return tensor.clone()
        with torch.cuda.stream(self._peek_stream):
            return tensor.cpu()  # which waits for this stream alone

    @contextlib.contextmanager
    def side_stream(self) -> Iterator[Callable[[], None]]:
        """Work queued inside goes to a second stream, behind what the main one has been given so far.

        Yields a function to call once what the next step needs is queued: `join_side_stream` waits for no more.
        """
        if self._side_stream is None:
            yield lambda: None
            return
        self._side_stream.wait_stream(torch.cuda.current_stream(self.torch))
        with torch.cuda.stream(self._side_stream):
            yield self._record_ready

    def _record_ready(self) -> None:
        self._ready_for_next = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._ready_for_next.record()

    def join_side_stream(self) -> None:
        """The main stream waits, on the device, for what the last step called ready."""
        if self._ready_for_next is not None:
            torch.cuda.current_stream(self.torch).wait_event(self._ready_for_next)

    @contextlib.contextmanager
    def encode_stream(self) -> Iterator[Callable[[], None]]:
        """Work queued inside goes to a third stream, beside what the main one was given; what that one is given after
        the block waits for it, on the device.

        Yields a function to call once what reads the results is queued on the main stream: only then, on the device,
        does the next block begin, whose results may get their memory. Until the first call a block begins behind all.
        """
        if self._encode_stream is None:
            yield lambda: None
            return
        main = torch.cuda.current_stream(self.torch)
        if self._rows_taken is None:
            self._encode_stream.wait_stream(main)
        else:
            self._encode_stream.wait_event(self._rows_taken)
        with torch.cuda.stream(self._encode_stream):
            yield self._record_taken
        main.wait_stream(self._encode_stream)

    def _record_taken(self) -> None:
        self._rows_taken = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._rows_taken.record()

    def begin(self) -> Start:
        """The start of a timed stretch of work."""
        if not self.is_cuda:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def mark(self, start: Start, host_seconds: float) -> Mark:
        """The present end of the work queued since `start`. `host_seconds` is how long the host ran it."""
        if start is None:
            return HostMark(host_seconds)
        end = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        end.record()
        return CudaMark(start, end)

    def synchronize(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize(self.torch)

    def num_allocations(self) -> int:
        """Count of enlargements of device and pinned memory so far: constant in a steady state. 0 on the CPU."""
        if not self.is_cuda:
            return 0
        device = torch.cuda.memory_stats(self.torch)["num_device_alloc"]
        return int(device) + int(torch.cuda.host_memory_stats()["num_host_alloc"])

    def capture(self, run: Callable[[], object], pool: "Pool | None") -> "Graph":
        """Record what `run` queues, in memory shared with the other graphs of `pool`. CUDA only."""
        graph = torch.cuda.CUDAGraph()
        # thread_local: a thread of NCCL may look at its events meanwhile
        with torch.cuda.graph(graph, pool, capture_error_mode="thread_local"):  # type: ignore[arg-type]
            run()
        return graph

    def tape(self, run: Callable[[], torch.Tensor], num_tokens: int, num_rows: int) -> Tape:
        """Record what `run` calls of the compiled kernels, for steps of up to this size. CPU only.

        Raises NotNativeError for what is no such call.
        """
        return record(run, num_tokens, num_rows)

    def lock(self, tensors: Iterable[torch.Tensor]) -> None:
        """Keep tensors in the memory of the host. Raises `DeviceError` on CUDA, and where the process may not."""
        if self.is_cuda:
            raise DeviceError("mlock: the weights lie in the memory of a GPU, which nothing swaps; leave it out")
        try:
            lock(tensors)
        except OSError as error:
            limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
            allowed = "no limit" if limit == resource.RLIM_INFINITY else f"a limit of {format_bytes(limit)}"
            raise DeviceError(
                f"mlock: the weights cannot be kept in memory ({error.strerror}; this process has {allowed}); raise it "
                "(ulimit -l, LimitMEMLOCK= of a systemd unit, --ulimit memlock= of a container), or leave mlock out"
            ) from error

    def total_memory(self) -> int:
        """Bytes of the device (CUDA) or of the machine."""
        return int(torch.cuda.mem_get_info(self.torch)[1]) if self.is_cuda else machine_bytes("MemTotal")

    def free_memory(self) -> int:
        """Bytes a new allocation could get."""
        return int(torch.cuda.mem_get_info(self.torch)[0]) if self.is_cuda else machine_bytes("MemAvailable")

    def held_memory(self) -> int:
        """Bytes torch holds of the device, used or not; 0 on the CPU."""
        return int(torch.cuda.memory_reserved(self.torch)) if self.is_cuda else 0

    def reset_peak(self) -> None:
        if self.is_cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.torch)

    def peak_memory(self) -> int:
        """Most bytes torch held since `reset_peak`, graphs included; 0 on the CPU, where nothing is profiled."""
        return int(torch.cuda.max_memory_reserved(self.torch)) if self.is_cuda else 0
