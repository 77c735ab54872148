"""A scheduler and its workers in one small process, to measure a frontend with nothing else in the way.

`python tests/bench/stand_in.py ADDRESS PACE_MS MAX_MODEL_LEN VOCAB_SIZE` answers every request with its `max_tokens`
tokens, one every PACE_MS for all that are open, and before them the prompt's logprobs, if they are wanted. It says of
itself that it takes images of any size. When its standard input ends it prints one JSON list, for each Submit when it
arrived (CLOCK_MONOTONIC, which all processes of a machine share), how many tokens its prompt has and how many
seconds its budget has left.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import zmq

from quire.proto.messages.introspection import MetricsQuery, MetricsReply
from quire.proto.messages.media import MediaFacts
from quire.proto.messages.message import Usage
from quire.proto.messages.requests import (
    PROTOCOL_VERSION,
    Abort,
    Finish,
    Hello,
    Limits,
    ModelFacts,
    OutputLogprobs,
    Outputs,
    PositionLogprobs,
    SchedulerBeat,
    Submit,
    Welcome,
)
from quire.proto.transport.wire import encode, frontend_decoder, ints

BEAT_SECONDS = 0.5
STEP_TOKENS = 2048
FIRST_TOKEN = 100
"""Below it may be special ones."""


@dataclass(slots=True)
class Row:
    """One request that is being answered."""

    peer: bytes
    submit: Submit
    num_tokens: int = 0
    num_told: int = 0
    """Of the prompt's logprobs."""

    @property
    def num_wanted(self) -> int:
        return len(self.submit.prompt) // 4 - 1 if self.submit.params.prompt_logprobs >= 0 else 0


class StandIn:
    def __init__(self, address: str, pace_seconds: float, max_model_len: int, vocab_size: int) -> None:
        self.arrivals: list[tuple[float, int, float]] = []
        self._pace_seconds = pace_seconds
        self._socket = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(address)
        self._decoder = frontend_decoder()
        self._rows: dict[tuple[bytes, int], Row] = {}
        self._peers: set[bytes] = set()
        self._step = 0
        self._vocab_size = vocab_size
        facts = ModelFacts(
            max_model_len=max_model_len,
            vocab_size=vocab_size,
            eos_token_ids=(0,),
            num_blocks=1 << 20,
            block_sizes=(16,),
            kv_bytes=1,
            weight_bytes=1,
            device="none",
            dtype="none",
            architecture="none",
            revision="none",
            media=MediaFacts(("image",), tokens_by=4, page_rows=64, num_pages=1 << 20),
        )
        limits = Limits(
            max_num_seqs=1024,
            max_num_batched_tokens=1 << 20,
            max_num_queued_reqs=1024,
            max_num_queued_tokens=1 << 30,
            priority_enabled=False,
            max_timeout_seconds=3600.0,
        )
        self._welcome = Welcome(PROTOCOL_VERSION, "stand-in", "ready", limits, facts)

    def run(self) -> None:
        """Until standard input ends."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(sys.stdin.fileno(), zmq.POLLIN)
        next_step = next_beat = time.monotonic()
        while True:
            wait = max(0.0, min(next_step, next_beat) - time.monotonic())
            ready = dict(poller.poll(1e3 * wait))
            if sys.stdin.fileno() in ready:
                return
            if self._socket in ready:
                self._receive()
            now = time.monotonic()
            if now >= next_beat:
                next_beat = now + BEAT_SECONDS
                for peer in self._peers:
                    self._say(peer, SchedulerBeat(1, self._step, is_idle=False))
            if now >= next_step:
                next_step = max(next_step + self._pace_seconds, now)
                self._decode()

    def _receive(self) -> None:
        peer, frame = self._socket.recv_multipart()
        now = time.monotonic()
        message = self._decoder.decode(frame)
        match message:
            case Hello():
                self._peers.add(peer)
                self._say(peer, self._welcome)
            case Submit():
                self.arrivals.append((now, len(message.prompt) // 4, message.timeout_seconds))
                self._rows[peer, message.number] = Row(peer, message)
            case Abort():
                for number in message.numbers:
                    self._rows.pop((peer, number), None)
            case MetricsQuery():
                self._say(peer, MetricsReply(message.query, (), ()))

    def _decode(self) -> None:
        """One token for every row."""
        self._step += 1
        for peer in self._peers:
            rows = {number: row for (owner, number), row in self._rows.items() if owner == peer}
            logprobs = self._prompt_logprobs(rows)
            ready = {number: row for number, row in rows.items() if row.num_told >= row.num_wanted}
            if ready or logprobs:
                self._say(peer, self._outputs(ready, logprobs))
        self._rows = {key: row for key, row in self._rows.items() if row.num_tokens < row.submit.params.max_tokens}

    def _outputs(self, rows: Mapping[int, Row], logprobs: Sequence[OutputLogprobs]) -> Outputs:
        positions = [row.num_tokens for row in rows.values()]
        tokens = [FIRST_TOKEN + (self._step + number) % (self._vocab_size - FIRST_TOKEN) for number in rows]
        finishes: list[Finish] = []
        for number, row in rows.items():
            row.num_tokens += 1
            if row.num_tokens == row.submit.params.max_tokens:
                usage = Usage(len(row.submit.prompt) // 4, 0, row.num_tokens, 0.0, 0.0, 0.0)
                finishes.append(Finish(number, 0, "length", usage, row.num_tokens))
        numbers = np.array(list(rows), dtype="<i8").tobytes()
        return Outputs(
            1, numbers, ints([0] * len(rows)), ints(positions), ints(tokens), tuple(finishes), tuple(logprobs)
        )

    def _prompt_logprobs(self, rows: Mapping[int, Row]) -> list[OutputLogprobs]:
        """Of as many positions as one step of an engine reads."""
        told, left = [], STEP_TOKENS
        for number, row in rows.items():
            size = min(left, row.num_wanted - row.num_told)
            if size > 0:
                told.append(self._of_prompt(number, row, size))
                row.num_told += size
                left -= size
        return told

    def _of_prompt(self, number: int, row: Row, size: int) -> OutputLogprobs:
        top = row.submit.params.prompt_logprobs
        first_position = 1 + row.num_told
        ids = np.frombuffer(row.submit.prompt, dtype="<i4")[first_position : first_position + size].tolist()
        values = tuple(-0.5 - rank for rank in range(top))
        entries = []
        for position, token in enumerate(ids, first_position):
            first = FIRST_TOKEN + position % (self._vocab_size - FIRST_TOKEN - top)
            entries.append(PositionLogprobs(token, -1.25, 3, tuple(range(first, first + top)), values))
        return OutputLogprobs(number, 0, True, first_position, tuple(entries))

    def _say(self, peer: bytes, message: msgspec.Struct) -> None:
        self._socket.send_multipart((peer, *encode(message)))


def main() -> None:
    address, pace_ms, max_model_len, vocab_size = sys.argv[1:]
    stand_in = StandIn(address, float(pace_ms) / 1e3, int(max_model_len), int(vocab_size))
    stand_in.run()
    print(json.dumps(stand_in.arrivals))


if __name__ == "__main__":
    main()
