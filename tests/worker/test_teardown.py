"""The order of a rank's end, on stand-ins for torch's graphs and groups: what it is torn down in, or left by."""

import signal
from types import SimpleNamespace

import pytest
import torch

from quire.proto.process import exit_codes
from quire.worker import rank as process
from quire.worker.config import WorkerConfig
from quire.worker.device import parallel
from quire.worker.device.device import Device
from quire.worker.device.parallel import connect
from quire.worker.loop import StartRefused
from quire.worker.memory.shortage import MemoryShortage, MemoryTaken
from quire.worker.step.graphs import Graphs
from quire.worker.step.inputs import Bucket
from quire.worker.step.runner import Runner


class Left(BaseException):
    """The process would have ended here."""


@pytest.fixture
def told(monkeypatch):
    """What happened, in order."""
    told = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _=None: told.append("synchronize"))
    monkeypatch.setattr(parallel.dist, "FileStore", lambda *_: parallel.dist.HashStore())
    monkeypatch.setattr(parallel.dist, "init_process_group", lambda *_, **__: told.append("group made"))
    monkeypatch.setattr(parallel.ProcessGroup, "all_gather", lambda _, tensor: torch.cat([tensor, tensor]))
    monkeypatch.setattr(parallel.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(parallel.dist, "destroy_process_group", lambda: told.append("group destroyed"))
    return told


class Recorded:
    """A graph."""

    def __init__(self, told):
        self._told = told

    def replay(self):
        self._told.append("replayed")

    def pool(self):
        return (0, 0)

    def reset(self):
        self._told.append("graph reset")


def graphs_of(told):
    """Two of them, captured."""
    device = Device("cpu", 0)
    device.capture = lambda run, pool: Recorded(told)
    device.synchronize = lambda: told.append("synchronize")
    graphs = Graphs(device, [Bucket(1, 1), Bucket(2, 2)])
    graphs.capture(lambda bucket: torch.zeros(bucket.num_tokens, 2), 2, torch.float32)
    told.clear()
    return graphs


def test_graphs_end_behind_the_work_and_are_not_replayed_again(told):
    graphs = graphs_of(told)
    graphs.close()
    assert told == ["synchronize", "graph reset", "graph reset"]
    assert graphs.fitting(1, 1) is None


@pytest.fixture
def serve(told, monkeypatch):
    """`serve(code, epoch=1, error=None)`: a rank of two that captured graphs, or whose start raised `error`."""

    def exit_now(code):
        told.append(f"left by {code}")
        raise Left

    def run(code, epoch=1, error=None):
        def start(config, rank, device, join):
            join()
            if error is not None:
                raise error
            runner = Runner.__new__(Runner)
            runner._graphs = graphs_of([])
            runner._graphs._device.synchronize = lambda: None
            for graph, _ in runner._graphs._captured.values():
                graph._told = told
            return SimpleNamespace(executor=runner)

        class Worker:
            def __init__(self, *_):
                """Speaks to nobody."""

            def run(self, begin):
                begin()
                return code

        group = SimpleNamespace(term=lambda: told.append("last words sent"))
        monkeypatch.setattr(process, "start", start)
        monkeypatch.setattr(process, "Worker", Worker)
        monkeypatch.setattr(process, "Dealer", lambda *_: SimpleNamespace(close=lambda _: None))
        monkeypatch.setattr(process.zmq, "Context", lambda: group)
        monkeypatch.setattr(process, "exit_now", exit_now)
        monkeypatch.setattr(process, "exit_on", lambda number, code: told.append(f"{number.name} leaves by {code}"))
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        config = WorkerConfig(device="cpu", tensor_parallel_size=2, scheduler_address="ipc://x", run_dir="/tmp",
                              flags={"gpu_memory_utilization": "--gpu-memory-utilization"})  # fmt: skip
        return process.serve(config, 0, epoch)

    return run


def test_graphs_are_gone_before_their_communicator_is(serve, told):
    assert serve(exit_codes.SUCCESS) == exit_codes.SUCCESS
    assert told == [
        "SIGTERM leaves by 0",
        "group made",
        "graph reset",
        "graph reset",
        "group destroyed",
        "last words sent",
    ]


def test_a_failure_takes_nothing_apart(serve, told):
    with pytest.raises(Left):
        serve(exit_codes.WORKER_FAILED)
    assert told == ["SIGTERM leaves by 0", "group made", "last words sent", "left by 4"]


@pytest.mark.parametrize(
    ("error", "epoch", "refused"),
    [
        (MemoryShortage("max_model_len: too long"), 2, True),
        (MemoryTaken("gpu_memory_utilization: too much"), 1, True),
        # the memory of the group that died may be on its way back: a refusal would end the engine
        (MemoryTaken("gpu_memory_utilization: too much"), 2, False),
    ],
)
def test_memory_that_others_hold_ends_the_first_start_and_delays_a_later_one(serve, error, epoch, refused):
    with pytest.raises(StartRefused if refused else MemoryTaken) as told:
        serve(exit_codes.SUCCESS, epoch, error)
    assert str(told.value) == str(error).replace("gpu_memory_utilization", "--gpu-memory-utilization")


@pytest.mark.parametrize(("kind", "backend"), [("cuda", "nccl"), ("cpu", "gloo")])
def test_a_group_is_of_its_devices_library(kind, backend, monkeypatch, told):
    made = []
    monkeypatch.setattr(parallel.dist, "init_process_group", lambda name, **rest: made.append((name, rest)))
    device = torch.device(kind, 0) if kind == "cuda" else torch.device(kind)
    connect(0, 2, 1, device, "/tmp/meeting").close()
    assert made[0][0] == backend
    assert made[0][1]["device_id"] == (device if kind == "cuda" else None)
    assert told == ["group destroyed"]
