"""A scripted scheduler on a real socket: what a frontend is told is what a test says."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import zmq
import zmq.asyncio
from parts.clock import GUARD

from quire.proto.messages.introspection import (
    EndedOutput,
    EndedQuery,
    EndedReply,
    EngineLoad,
    ExplainQuery,
    ExplainReply,
    Figure,
    LiveOutput,
    LoadQuery,
    LoadReply,
    MetricsQuery,
    MetricsReply,
    PrefixQuery,
    PrefixReply,
    StatusQuery,
    StatusReply,
    StepRecord,
    Story,
)
from quire.proto.messages.message import Usage
from quire.proto.messages.requests import (
    PROTOCOL_VERSION,
    Abort,
    AbortedLabels,
    AbortLabels,
    Finish,
    Hello,
    Limits,
    ModelFacts,
    OutputLogprobs,
    Outputs,
    Refused,
    SchedulerBeat,
    Submit,
    Welcome,
)
from quire.proto.transport.wire import Frame, encode, frontend_decoder, ints

Event = tuple[int, int, int]
"""(output index, position, token)"""


def facts(**changes: object) -> ModelFacts:
    values: dict[str, object] = {
        "max_model_len": 512,
        "vocab_size": 420,
        "eos_token_ids": (0,),
        "num_blocks": 64,
        "block_sizes": (16,),
        "kv_bytes": 1,
        "weight_bytes": 1,
        "device": "cpu",
        "dtype": "float32",
        "kv_dtype": "float8_e4m3fn",
        "quantization": "fp8 (f8 blocks)",
        "architecture": "Tiny",
        "revision": "r1",
        "adapters": ("poet",),
    }
    return ModelFacts(**{**values, **changes})


class FakeScheduler:
    """A scripted scheduler: it answers a `Submit` by `script`, or the test sends the answers."""

    def __init__(self, address: str, life: str = "life-1", state: str = "ready") -> None:
        self.address = address
        self.life = life
        self.state = state
        self.detail = ""
        self.priority_enabled = False
        self.facts: ModelFacts | None = facts()
        self.records: tuple[StepRecord, ...] = ()
        self.live: tuple[LiveOutput, ...] = ()
        self.stories: dict[str, tuple[Story, ...]] = {}
        self.ended: tuple[EndedOutput, ...] = ()
        self.num_pictures = 0
        self.submits: list[Submit] = []
        self.aborts: list[Abort] = []
        self.script: Callable[[Submit], None] | None = None
        self.epoch = 1
        self.step = 0
        self.muted = False
        self.stands_still = False
        self.figures = (Figure("requests_running", 3.0), Figure("requests_waiting", 4.0), Figure("kv_usage_ratio", 0.5))
        self.peers: set[bytes] = set()
        self._decoder = frontend_decoder()
        self._outbox: deque[tuple[Frame, ...]] = deque()
        self._pending = asyncio.Event()

    async def __aenter__(self) -> "FakeScheduler":
        self._socket = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # a full queue would drop messages without a word
        self._socket.bind(self.address)
        self._tasks = [asyncio.create_task(work()) for work in (self._receive, self._send, self._beat)]
        return self

    async def __aexit__(self, *exit: object) -> None:
        """Die: nothing that waits is sent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()

    def send(self, message: msgspec.Struct) -> None:
        for peer in self.peers:
            self._outbox.append((peer, *encode(message)))
        self._pending.set()

    def change(self, state: str, detail: str = "") -> None:
        self.state, self.detail = state, detail
        self.send(self.welcome())

    def load(self) -> EngineLoad:
        return EngineLoad("ready", 1, 2, 3, 4, 5, 64, 7, 8, 9, 10, 11, 12, 13, 14, 0.5)

    def welcome(self) -> Welcome:
        limits = Limits(
            max_num_seqs=256,
            max_num_batched_tokens=2048,
            max_num_queued_reqs=100,
            max_num_queued_tokens=1000,
            priority_enabled=self.priority_enabled,
            max_timeout_seconds=3600.0,
        )
        lives = self.state in ("ready", "draining")
        return Welcome(PROTOCOL_VERSION, self.life, self.state, limits, self.facts, self.detail, 1, lives)

    def outputs(
        self,
        number: int,
        events: Sequence[Event],
        finishes: Sequence[Finish] = (),
        logprobs: Sequence[OutputLogprobs] = (),
    ) -> None:
        indexes, positions, tokens = zip(*events, strict=True) if events else ((), (), ())
        numbers = np.full(len(events), number, dtype="<i8").tobytes()
        self.send(
            Outputs(self.epoch, numbers, ints(indexes), ints(positions), ints(tokens), tuple(finishes), tuple(logprobs))
        )

    def finish(self, number: int, num_tokens: int, reason: str = "stop", index: int = 0, **more: object) -> Finish:
        return Finish(number, index, reason, Usage(3, 1, num_tokens, 0.1, 0.2, 0.3), num_tokens, **more)

    def answer(
        self, number: int, tokens: Sequence[int], reason: str = "length", index: int = 0, **more: object
    ) -> None:
        """All tokens of one output, one message each, then its end with the last."""
        for position, token in enumerate(tokens):
            last = position == len(tokens) - 1
            ends = [self.finish(number, len(tokens), reason, index, **more)] if last else []
            self.outputs(number, [(index, position, token)], ends)

    async def submitted(self, count: int = 1) -> Submit:
        """The `count`-th submit since start."""
        await until(lambda: len(self.submits) >= count)
        return self.submits[count - 1]

    async def _receive(self) -> None:
        while True:
            peer, frame = await self._socket.recv_multipart()
            message = self._decoder.decode(frame)
            if self.muted:
                continue
            if isinstance(message, Hello):
                self.peers.add(peer)
                self.send(self.welcome())
            elif peer not in self.peers:
                self._outbox.append((peer, *encode(Refused("say HELLO first"))))
                self._pending.set()
            elif isinstance(message, Submit):
                self.submits.append(message)
                if self.script is not None:
                    self.script(message)
            elif isinstance(message, Abort):
                self.aborts.append(message)
            elif isinstance(message, LoadQuery):
                self.send(LoadReply(message.query, self.load()))
            elif isinstance(message, StatusQuery):
                new = tuple(record for record in self.records if record.step > message.after_step)
                blocks = np.array([0, 1, 16], "<u2").tobytes() if message.blocks else b""
                self.num_pictures += message.blocks
                self.send(StatusReply(message.query, 12.5, self.load(), self.live, blocks, new))
            elif isinstance(message, ExplainQuery):
                self.send(ExplainReply(message.query, message.label, self.stories.get(message.label, ())))
            elif isinstance(message, EndedQuery):
                self.send(EndedReply(message.query, 12.5, len(self.ended), self.ended[message.after :]))
            elif isinstance(message, PrefixQuery):
                readers = np.array([0, 2, 1], "<u2").tobytes()
                self.send(PrefixReply(message.query, np.array([-1, 1, 1], "<i4").tobytes(), readers))
            elif isinstance(message, MetricsQuery):
                self.send(MetricsReply(message.query, self.figures, ()))
            elif isinstance(message, AbortLabels):
                live = [submit.label for submit in self.submits]
                self.send(AbortedLabels(message.query, tuple(live.count(label) for label in message.labels)))

    async def _send(self) -> None:
        while True:
            await self._pending.wait()
            self._pending.clear()
            while self._outbox:
                await self._socket.send_multipart(self._outbox.popleft())

    async def _beat(self) -> None:
        while True:
            if not self.muted:
                self.step += not self.stands_still
                self.send(SchedulerBeat(self.epoch, self.step, is_idle=not self.stands_still))
            await asyncio.sleep(0.05)


async def until(condition: Callable[[], bool], seconds: float = GUARD) -> None:
    """Poll a condition; fail after the deadline."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)
