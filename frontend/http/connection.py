"""One HTTP/1.1 connection: uvicorn's httptools protocol with every limit that it leaves to a proxy.

Refused with an answer in our error shape, then closed: a request line or header block that is too long, has too many
headers or comes too slowly; whatever two servers could read as two different requests (RFC 9112, section 11.2).
Requests are not pipelined: what follows a request that is still being answered is not read, and the connection closes
after the answer, as RFC 9112, section 9.3.2 allows. A client that goes away cancels the task that answers it.
"""

import asyncio
import uuid
from http import HTTPStatus
from typing import Any

import httptools
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from quire.frontend.http.connection_limits import Bounds
from quire.frontend.http.errors import HttpError, render

UNSENT_BYTES = 16 << 10
"""What may wait here for a reader; more makes the writer wait, so that the stream's rule for slow readers counts."""
LINGER_SECONDS = 5.0
"""How long a refused client may still send, and a closing connection may still be read from."""
MAX_DIGITS = 19
"""Of a Content-Length, zeros in front included."""
HOST_CHARS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~:[]%")


class BoundedConnection(HttpToolsProtocol):
    """See the module. Timers: headers, idle, and the end; a body's pieces are timed where they are read."""

    def __init__(self, bounds: Bounds, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._bounds = bounds
        self._timer: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        """Runs while a reader leaves too much unread."""
        self._task: asyncio.Task[None] | None = None
        self._in_headers = False
        self._header_bytes = 0
        self._refusal: HttpError | None = None
        self._is_deaf = False
        """Nothing that still arrives counts."""
        self._is_replay = False
        """The parser reads headers that have been heard already."""

    # ---- the transport's events

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=UNSENT_BYTES)
        if len(self.connections) > self._bounds.max_connections:
            message = f"this server has {self._bounds.max_connections} connections open; try again later"
            self._refuse(HttpError(503, "too_many_connections", message, {"retry-after": "1"}))
        else:
            self._rest()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._bounds.silent.pop(self, None)
        self._disarm()
        self._unwatch()
        self._unset_keepalive_if_required()
        if self._task is not None and not self.cycle.response_complete:
            self._task.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch(-1)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unwatch()
        if self.transport.is_closing():
            self._arm(self._bounds.config.slow_reader_seconds, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        if self._is_busy and not self.cycle.more_body:
            self.cycle.keep_alive = False  # pipelined; see the module
            self._is_deaf = True
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
            if self._header_bytes > self._bounds.config.max_header_bytes:
                self._refuse(self._too_long())

    # ---- the parser's events

    def on_message_begin(self) -> None:
        if self._is_busy and not self._is_replay:  # pipelined within one piece
            self.cycle.keep_alive = False
            self._is_deaf = True
        if not self._is_deaf and not self._is_replay:
            super().on_message_begin()
            self._in_headers = True
            self._header_bytes = 0
            self._arm(self._bounds.config.header_seconds, self._refuse_slow_headers)

    def on_url(self, url: bytes) -> None:
        if not self._is_deaf and not self._is_replay:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_deaf or self._is_replay:
            return
        if not self._in_headers:
            self._stop(HttpError(400, "bad_request", "trailers are not accepted"))
        super().on_header(name, value)
        most = self._bounds.config.max_num_headers
        if len(self.headers) > most:
            self._stop(HttpError(431, "headers_too_large", f"there are more than {most} headers"))

    def on_headers_complete(self) -> None:
        if self._is_deaf or self._is_replay:
            return
        self._in_headers = False
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._bounds.config.max_header_bytes:
            self._stop(self._too_long())
        if (flaw := self._ambiguity()) is not None:
            self._stop(HttpError(400, "bad_request", flaw))
        self._disarm()
        self._bounds.silent.pop(self, None)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_deaf and not self.parser.should_upgrade():
            super().on_message_complete()
            if self.cycle.response_complete and not self.transport.is_closing():
                self._rest()

    def _pass_over_upgrade(self) -> None:
        """Offers of h2c and the like, which some clients make with every first request, are not taken.

        The parser has stopped behind the headers; another one reads the body, told only how long it is.
        """
        framing = [(name, value) for name, value in self.headers if name in (b"content-length", b"transfer-encoding")]
        self.parser = httptools.HttpRequestParser(self)
        self._is_replay = True
        head = b"".join(name + b": " + value + b"\r\n" for name, value in framing)
        self.parser.feed_data(b"POST / HTTP/1.1\r\n" + head + b"\r\n")
        self._is_replay = False

    # ---- the answer

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        if self._bounds.is_closing:
            cycle.keep_alive = False
        self._task = self.loop.create_task(cycle.run_asgi(app))  # type: ignore[arg-type]
        self._task.add_done_callback(self._answered)
        self.tasks.add(self._task)

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
            self._rest()

    def shutdown(self) -> None:
        """Close now when idle, else after the answer."""
        if self._is_busy:
            self.cycle.keep_alive = False
        else:
            self._close()

    @property
    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # ---- refusals

    def _ambiguity(self) -> str | None:
        """What a proxy before us might have understood otherwise."""
        if not self.url.startswith(b"/"):
            return "the request target must be a path"
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) != 1 and self.parser.get_http_version() == "1.1":
            return "there must be exactly one Host header"
        if any(not host or not HOST_CHARS.issuperset(host) for host in hosts):
            return "the Host header is not a host name"
        encodings = [value.lower() for name, value in self.headers if name == b"transfer-encoding"]
        lengths = [value for name, value in self.headers if name == b"content-length"]
        if encodings and (lengths or encodings != [b"chunked"] or self.parser.get_http_version() != "1.1"):
            return "Transfer-Encoding must be chunked, alone, and without Content-Length"
        if len(lengths) > 1 or any(not length.isdigit() or len(length) > MAX_DIGITS for length in lengths):
            return "there must be one Content-Length, a whole number"
        return None

    def _too_long(self) -> HttpError:
        message = f"the request line and headers have more than {self._bounds.config.max_header_bytes} bytes"
        return HttpError(431, "headers_too_large", message)

    def _stop(self, refusal: HttpError) -> None:
        """From within the parser: what is raised there only stops it."""
        self._refusal = refusal
        raise ValueError(refusal.message)

    def _refuse_slow_headers(self) -> None:
        seconds = self._bounds.config.header_seconds
        self._refuse(HttpError(408, "request_timeout", f"the headers were not complete after {seconds:g} s"))

    def _refuse(self, refusal: HttpError) -> None:
        """Answer and close. A request whose answer has begun is cut off: its end would be read as something else."""
        self._is_deaf = True
        if self._task is not None:
            self._task.cancel()
        if self._is_busy:
            self.cycle.disconnected = True
            if self.cycle.response_started:
                self.transport.abort()
                return
        status, headers, body = render(refusal, uuid.uuid4().hex)
        headers |= {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
        self.transport.write("\r\n".join(lines).encode("latin-1") + body)
        # closing with unread bytes would reset the connection before the client has read why
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._arm(LINGER_SECONDS, self.transport.abort)
        else:
            self._close()

    # ---- timers

    def _rest(self) -> None:
        """Nothing is asked. Closed after a while; at once when another connection needs the room."""
        self._bounds.silent[self] = self.transport.abort
        self._arm(self._bounds.config.keep_alive_seconds, self._close)

    def _close(self) -> None:
        self.transport.close()
        self._arm(LINGER_SECONDS, self._cut_off)

    def _cut_off(self) -> None:
        """Unless somebody still reads the answer, however slowly."""
        if not self.flow.write_paused:
            self.transport.abort()

    def _watch(self, unread: int) -> None:
        """Of a reader who takes nothing at all the streams are told first; what they do not end is ended here."""
        left = self.transport.get_write_buffer_size()
        if left == unread:
            self.transport.abort()
        else:
            seconds = self._bounds.config.slow_reader_seconds + LINGER_SECONDS
            self._stall = self.loop.call_later(seconds, self._watch, left)

    def _unwatch(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _arm(self, seconds: float, then: Any) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, then)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
