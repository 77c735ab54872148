"""One HTTP/1.1 connection: uvicorn's httptools protocol with every limit that it leaves to a proxy.

Refused with an answer in our error shape, then closed: a request line or header block that is too long, has too many
headers or comes too slowly; a request whose framing is ambiguous (`framing`). Requests are not pipelined: what follows
a request that is still being answered is not read, and the connection closes after the answer, as RFC 9112, section
9.3.2 allows. A client that goes away cancels the task that answers it.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from quire.frontend.http.connection_limits import ConnectionLimits
from quire.frontend.http.errors import HttpError, closing_response
from quire.frontend.http.framing import ambiguity
from quire.frontend.http.stall_watch import StallWatch

UNSENT_BYTES = 16 << 10
"""Most bytes that wait here for a reader; more make the writer wait, so that the rule for slow readers counts."""
LINGER_SECONDS = 5.0
"""Time for which a refused client may still send, and a closing connection may still be read from."""


class AnswerTransport(asyncio.Transport):
    """The transport as the cycle that answers sees it: it writes there, and how the connection ends is left to that."""

    def __init__(self, transport: asyncio.Transport, end: Callable[[], None]) -> None:
        super().__init__()
        self._transport = transport
        self._end = end

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._end()


class BoundedConnection(HttpToolsProtocol):
    """See the module. It times headers, idleness and the end; a body's pieces are timed where they are read."""

    def __init__(self, limits: ConnectionLimits, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._stall_watch = StallWatch()
        self._task: asyncio.Task[None] | None = None
        self._in_headers = False
        self._header_bytes = 0
        self._refusal: HttpError | None = None
        self._ignores_input = False
        """True once nothing that still arrives counts."""
        self._is_replay = False
        """True while the parser reads headers that were handled already."""

    # ---- the transport's events

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=UNSENT_BYTES)
        if len(self.connections) > self._limits.max_connections:
            message = f"this server has {self._limits.max_connections} connections open; try again later"
            self._refuse(HttpError(503, "too_many_connections", message, {"retry-after": "1"}))
        else:
            self._on_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._limits.idle.pop(self, None)
        self._disarm()
        self._stall_watch.stop()
        self._unset_keepalive_if_required()
        if self._task is not None and not self.cycle.response_complete:
            self._task.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        # streams come first: they end by their own rule for slow readers
        self._stall_watch.start(self.transport, self._limits.config.slow_reader_seconds + LINGER_SECONDS)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall_watch.stop()
        if self.transport.is_closing():
            self._arm(self._limits.config.slow_reader_seconds, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            return
        if self._is_busy and not self.cycle.more_body:
            self.cycle.keep_alive = False  # pipelined; see the module
            self._ignores_input = True
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._pass_over_upgrade()
            if rest := data[upgrade.args[0] :]:
                self.data_received(rest)
            return
        except httptools.HttpParserError:
            self._refuse(self._refusal or HttpError(400, "bad_request", "this is not a valid HTTP/1.1 request"))
            return
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > self._limits.config.max_header_bytes:
                self._refuse(self._too_long())

    # ---- the parser's events

    def on_message_begin(self) -> None:
        if self._is_busy and not self._is_replay:  # pipelined within one piece
            self.cycle.keep_alive = False
            self._ignores_input = True
        if not self._ignores_input and not self._is_replay:
            super().on_message_begin()
            self._in_headers = True
            self._header_bytes = 0
            self._arm(self._limits.config.header_seconds, self._refuse_slow_headers)

    def on_url(self, url: bytes) -> None:
        if not self._ignores_input and not self._is_replay:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._ignores_input or self._is_replay:
            return
        if not self._in_headers:
            self._stop(HttpError(400, "bad_request", "trailers are not accepted"))
        super().on_header(name, value)
        most = self._limits.config.max_num_headers
        if len(self.headers) > most:
            self._stop(HttpError(431, "headers_too_large", f"there are more than {most} headers"))

    def on_headers_complete(self) -> None:
        if self._ignores_input or self._is_replay:
            return
        self._in_headers = False
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._limits.config.max_header_bytes:
            self._stop(self._too_long())
        if (flaw := ambiguity(self.url, self.headers, self.parser.get_http_version())) is not None:
            self._stop(HttpError(400, "bad_request", flaw))
        self._disarm()
        self._limits.idle.pop(self, None)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._ignores_input:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._ignores_input and not self.parser.should_upgrade():
            super().on_message_complete()
            self.flow.resume_reading()  # nothing is read of a client that leaves while reading is paused
            if self.cycle.response_complete and not self.transport.is_closing():
                self._on_idle()

    def _pass_over_upgrade(self) -> None:
        """Ignore an offer of h2c or the like, which some clients make with every first request.

        The parser has stopped behind the headers; another one reads the body and gets only its length.
        """
        framing = [(name, value) for name, value in self.headers if name in (b"content-length", b"transfer-encoding")]
        self.parser = httptools.HttpRequestParser(self)
        self._is_replay = True
        head = b"".join(name + b": " + value + b"\r\n" for name, value in framing)
        self.parser.feed_data(b"POST / HTTP/1.1\r\n" + head + b"\r\n")
        self._is_replay = False

    # ---- the answer

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        if self._limits.is_closing:
            cycle.keep_alive = False
        cycle.transport = AnswerTransport(self.transport, self._end)
        self._task = self.loop.create_task(cycle.run_asgi(app))  # type: ignore[arg-type]
        self._task.add_done_callback(self._answered)
        self.tasks.add(self._task)

    def _end(self) -> None:
        """Close behind the answer, or within one that failed. What is left of a request that was answered early is read
        for a while: closing with unread bytes would reset the connection before the client has read why."""
        if not (self.cycle.response_complete and self.cycle.more_body):
            self.transport.close()
            return
        self._ignores_input = True
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _answered(self, task: "asyncio.Task[None]") -> None:
        self.tasks.discard(task)
        self._task = None
        if self.transport.is_closing():
            self._arm(LINGER_SECONDS, self._cut_off)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()  # ours also ends a connection whose last answer is not read
        if self.transport.is_closing():
            return
        if self.cycle.more_body:
            self._arm(LINGER_SECONDS, self._close)
        else:
            self._on_idle()

    def shutdown(self) -> None:
        """Close now when idle, otherwise after the answer."""
        if self._is_busy:
            self.cycle.keep_alive = False
        else:
            self._close()

    @property
    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # ---- refusals

    def _too_long(self) -> HttpError:
        message = f"the request line and headers have more than {self._limits.config.max_header_bytes} bytes"
        return HttpError(431, "headers_too_large", message)

    def _stop(self, refusal: HttpError) -> None:
        """Refuse from within the parser: an exception there only stops it."""
        self._refusal = refusal
        raise ValueError(refusal.message)

    def _refuse_slow_headers(self) -> None:
        seconds = self._limits.config.header_seconds
        self._refuse(HttpError(408, "request_timeout", f"the headers were not complete after {seconds:g} s"))

    def _refuse(self, refusal: HttpError) -> None:
        """Answer and close. An answer that has begun is cut off: its end would be read as something else."""
        self._ignores_input = True
        if self._task is not None:
            self._task.cancel()
        if self._is_busy:
            self.cycle.disconnected = True
            if self.cycle.response_started:
                self.transport.abort()
                return
        self.transport.write(closing_response(refusal))
        # closing with unread bytes would reset the connection before the client has read why
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._arm(LINGER_SECONDS, self.transport.abort)
        else:
            self._close()

    # ---- timers

    def _on_idle(self) -> None:
        """Wait for a request: close after a while, or at once when another connection needs the room."""
        self._limits.idle[self] = self.transport.abort
        self._arm(self._limits.config.keep_alive_seconds, self._close)

    def _close(self) -> None:
        self.transport.close()
        self._arm(LINGER_SECONDS, self._cut_off)

    def _cut_off(self) -> None:
        """Abort unless somebody still reads the answer, however slowly."""
        if not self.flow.write_paused:
            self.transport.abort()

    def _arm(self, seconds: float, then: Any) -> None:
        self._disarm()
        if self in self.connections:  # once lost, `abort` of asyncio's transport may fail
            self._timer = self.loop.call_later(seconds, then)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
