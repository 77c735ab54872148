"""The supervisor's end of the scheduler's request socket."""

from collections import deque
from collections.abc import Callable, Iterator

import zmq

from quire.proto.messages.requests import PROTOCOL_VERSION, FrontendMessage, Hello, SchedulerMessage
from quire.proto.transport.channel import Dealer, PeerUnreachable
from quire.proto.transport.wire import WireError, scheduler_decoder

IDENTITY = b"supervisor"


class SchedulerChannel:
    """Channel to one scheduler process. Messages wait, in order, until it takes them; nothing here blocks."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", address: str, log: Callable[[str], None]) -> None:
        self._dealer: Dealer[SchedulerMessage] = Dealer(context, address, IDENTITY, scheduler_decoder())
        self._log = log
        self._outbox: deque[FrontendMessage] = deque([Hello("supervisor", PROTOCOL_VERSION)])

    @property
    def socket(self) -> "zmq.Socket[bytes]":
        return self._dealer.socket

    def send(self, message: FrontendMessage) -> None:
        self._outbox.append(message)
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the scheduler takes it."""
        while self._outbox:
            try:
                self._dealer.send(self._outbox[0], timeout_seconds=0)
            except PeerUnreachable:
                return  # it is not up yet, or gone: its death is seen elsewhere, the messages wait
            self._outbox.popleft()

    def receive(self) -> Iterator[SchedulerMessage]:
        """Every message that has arrived. An undecodable one is logged and dropped."""
        while True:
            try:
                message = self._dealer.receive(timeout_seconds=0)
            except WireError as error:
                self._log(f"message of the scheduler dropped: {error}")
                continue
            if message is None:
                return
            yield message

    def close(self) -> None:
        self._dealer.close()
