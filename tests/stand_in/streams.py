"""Streams of a chip that is not here, as the order that they promise: what is done before what begins.

Nothing is queued. Each operation takes its place in the order that streams, events and the waiting host make (vector
clocks: Mattern, 1989), and two that touch the same memory, one of them to write it, must stand behind each other.
"""

import contextlib
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from unittest import mock

import torch
from specialized import Specialized
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from unmade import looks

Clock = Counter[str]
"""By stream, how many of its operations are done."""


@dataclass(slots=True)
class Memory:
    """One piece of it, and by stream the newest operation that read it, and that wrote it."""

    owner: str
    """The stream on which it was allocated, which gets it again as soon as the host has let go of it."""
    reads: Clock = field(default_factory=Counter)
    writes: Clock = field(default_factory=Counter)


class Order(TorchDispatchMode):
    """The order of what runs inside, by torch or Triton. What Triton's kernels are given counts as written."""

    def __init__(self) -> None:
        super().__init__()
        self.races: Counter[str] = Counter()
        """Pairs of operations that nothing keeps apart, in words."""
        self.streams = ["main"]
        """The present one last."""
        self.clocks: defaultdict[str, Clock] = defaultdict(Counter)
        self.host: Clock = Counter()
        """What the host has waited for: what it queues later begins behind it."""
        self._memory: dict[int, Memory] = {}
        self._given_back: defaultdict[str, list[Memory]] = defaultdict(list)
        self._number = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not looks(func):
            given = func._schema.arguments
            named = dict(zip((one.name for one in given), args, strict=False)) | kwargs
            written = [named.get(one.name) for one in given if one.alias_info], result
            name = func.overloadpacket.__name__
            shapes_only = name.startswith("new_") or name.endswith("_like")
            self.run(name, () if shapes_only else (args, kwargs), written)
        return result

    def run(self, name: str, read: object, written: object) -> None:
        """One operation of the present stream."""
        stream = self.streams[-1]
        clock = self.clocks[stream]
        clock |= self.host
        clock[stream] += 1
        for of_writes, values in ((False, read), (True, written)):
            for value in tree_leaves(values):
                if isinstance(value, torch.Tensor):
                    self._use(name, stream, self._of(value, stream), of_writes)

    def _use(self, name: str, stream: str, memory: Memory, writes: bool) -> None:
        clock = self.clocks[stream]
        self._behind(f"{name} {'writes' if writes else 'reads'}", stream, memory.writes)
        if writes:
            self._behind(f"{name} writes", stream, memory.reads)
        (memory.writes if writes else memory.reads)[stream] = clock[stream]

    def _behind(self, what: str, stream: str, others: Clock) -> None:
        for other, number in others.items():
            if self.clocks[stream][other] < number:
                self.races[f"{stream}: {what} what {other} uses"] += 1

    def _of(self, tensor: torch.Tensor, stream: str) -> Memory:
        storage = tensor.untyped_storage()
        if not hasattr(storage, "number"):
            self._number += 1
            storage.number = self._number
            self._memory[self._number] = Memory(stream)
            weakref.finalize(storage, self._give_back, self._number)
            for old in self._given_back.pop(stream, ()):  # the new one may be any of these
                self._behind("is given memory of", stream, old.reads | old.writes)
        return self._memory[storage.number]

    def _give_back(self, number: int) -> None:
        memory = self._memory.pop(number)
        self._given_back[memory.owner].append(memory)


@contextlib.contextmanager
def ordered() -> Iterator[Order]:
    """Inside, within `on_chip`, streams and events are those of the order that it yields."""
    order = Order()

    class Stream:
        def __init__(self, device=None, priority=0, name="") -> None:
            self.name = name or f"stream {len(made)}"
            made.append(self)

        def wait_stream(self, other) -> None:
            order.clocks[self.name] |= order.clocks[other.name]

        def wait_event(self, event) -> None:
            order.clocks[self.name] |= event.clock

    class Event:
        device = torch.device("cuda", 0)

        def __init__(self, enable_timing=False, blocking=False) -> None:
            self.clock: Clock = Counter()

        def record(self) -> None:
            self.clock = Counter(order.clocks[order.streams[-1]])

        def synchronize(self) -> None:
            order.host |= self.clock

        def query(self) -> bool:
            return False

        def elapsed_time(self, end) -> float:
            return 1.0

    @contextlib.contextmanager
    def stream(one):
        order.streams.append(one.name)
        try:
            yield
        finally:
            order.streams.pop()

    made: list[Stream] = []
    main = Stream(name="main")

    def current(device=None) -> Stream:
        return next(one for one in made if one.name == order.streams[-1])

    def synchronize(device=None) -> None:
        for clock in order.clocks.values():
            order.host |= clock

    launched = Specialized.run

    def run(kernel, *given) -> None:
        launched(kernel, *given)
        order.run(kernel._name, given, given)

    with (
        mock.patch.multiple(
            torch.cuda, Stream=Stream, Event=Event, stream=stream, current_stream=current, synchronize=synchronize
        ),
        mock.patch.object(Specialized, "run", run),
        order,
    ):
        yield order
    assert order.streams == [main.name]
