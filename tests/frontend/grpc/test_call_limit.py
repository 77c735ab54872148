"""Calls and connections of the gRPC server: what one client may have open, and what becomes of the excess."""

import asyncio
import errno
import socket
import time

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.frontend.grpc.abort import abort
from quire.frontend.grpc.connections import _address, _closing_order
from quire.frontend.grpc.error_interceptor import ErrorInterceptor
from quire.frontend.limits import descriptors
from quire.frontend.limits.byte_budget import ByteBudget
from quire.frontend.limits.work_pool import WorkPool
from quire.proto.api import GenerateRequest, RequestError
from quire.proto.generated import quire_pb2 as pb
from quire.proto.generated import quire_pb2_grpc
from quire.proto.grpc_status import from_status, to_status


def own_connection(target: str) -> grpc.aio.Channel:
    """The library gives all channels of a process to one server the same connection, unless told otherwise."""
    return grpc.aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)])


def generate(channel: grpc.aio.Channel):
    return quire_pb2_grpc.InferenceStub(channel).Generate(pb.GenerateRequest(prompt="x"))


def test_the_calls_of_a_connection_are_bounded_and_others_have_their_own(serving):
    async def main():
        async with serving(max_concurrent_streams=2) as s:
            open_calls = [asyncio.create_task(s.client.generate(GenerateRequest(input="x"))) for _ in range(2)]
            await s.scheduler.submitted(2)
            with pytest.raises(RequestError, match="2 calls open") as caught:
                await s.client.generate(GenerateRequest(input="x"))
            error = caught.value
            assert (error.status, error.reason) == ("RESOURCE_EXHAUSTED", "TOO_MANY_STREAMS")
            assert (error.retryable, error.retry_after_seconds) == (True, 1.0)
            async with own_connection(s.target) as channel:
                third = asyncio.ensure_future(generate(channel))
                await s.scheduler.submitted(3)
                assert s.figures()["grpc_calls",] == 3
                for submit in s.scheduler.submits:
                    s.scheduler.answer(submit.number, [70])
                await asyncio.gather(*open_calls, third)
            await s.until(lambda: s.figures()["grpc_calls",] == 0)
            assert s.figures()["grpc_calls_refused_total",] == 1
            assert (await s.client.server_info()).state == "ready"

    asyncio.run(main())


def test_watchers_count_and_a_check_is_always_answered(serving):
    async def main():
        async with serving(max_concurrent_streams=1) as s, grpc.aio.insecure_channel(s.target) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            watching = health.Watch(health_pb2.HealthCheckRequest())
            assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await health.Watch(health_pb2.HealthCheckRequest()).read()
            told = from_status(caught.value.code(), caught.value.details(), caught.value.trailing_metadata())
            assert told.reason == "TOO_MANY_STREAMS"
            for _ in range(3):
                check = await health.Check(health_pb2.HealthCheckRequest())
                assert check.status == health_pb2.HealthCheckResponse.SERVING
            watching.cancel()
            await s.until(lambda: s.figures()["grpc_calls",] == 0)

    asyncio.run(main())


def test_all_connections_together_are_bounded_too(serving, monkeypatch):
    monkeypatch.setattr("quire.frontend.grpc.call_limit.ALL_CONNECTIONS", 1)

    async def main():
        async with serving(max_concurrent_streams=2) as s, own_connection(s.target) as channel:
            calls = [asyncio.create_task(s.client.generate(GenerateRequest(input="x"))), generate(channel)]
            await s.scheduler.submitted(2)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await generate(channel)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "this server has 2 calls open" in caught.value.details()
            for submit in s.scheduler.submits:
                s.scheduler.answer(submit.number, [70])
            await asyncio.gather(*calls)

    asyncio.run(main())


def test_silent_connections_are_closed_before_busy_ones_and_the_longest_silent_first(serving):
    async def main():
        async with serving(max_connections=16) as s:  # without HTTP all of them are gRPC's
            call = asyncio.create_task(s.client.generate(GenerateRequest(input="x")))
            await s.scheduler.submitted()
            await s.until(lambda: s.figures()["connections", "grpc"] == 1)
            first = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(6)]
            await s.until(lambda: s.figures()["connections", "grpc"] == 7)
            later = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(6)]
            await s.until(lambda: s.figures()["connections_closed_total", "grpc"] == 5)
            await s.until(lambda: s.figures()["connections", "grpc"] == 8)
            assert s.figures()["connections_limit", "grpc"] == 16
            assert sum(map(is_closed, first)) == 5
            assert not any(map(is_closed, later))
            s.scheduler.answer(s.scheduler.submits[0].number, [70])
            assert (await call).outputs
            for one in (*first, *later):
                one.close()

    asyncio.run(main())


def test_who_opens_too_many_again_and_again_keeps_no_newcomer_out(serving, monkeypatch):
    async def main():
        async with serving(max_connections=16) as s:
            held: list[socket.socket] = []

            async def flood() -> None:
                num_closed = s.figures()["connections_closed_total", "grpc"]
                held.extend(socket.create_connection(("127.0.0.1", s.port)) for _ in range(40))
                await s.until(lambda: s.figures()["connections_closed_total", "grpc"] > num_closed)

            await flood()
            monkeypatch.setattr("quire.frontend.grpc.connections.LOOK_SECONDS", 3600)  # in a hurry it does not matter
            await s.until(lambda: s.figures()["connections", "grpc"] <= 8)
            await asyncio.sleep(0.5)  # a few looks that find nothing to close
            for number in range(3):
                await flood()
                async with own_connection(s.target) as channel:
                    # on a busy machine the library's own bound may meet it before the next look: then it comes again
                    stub = quire_pb2_grpc.InferenceStub(channel)
                    call = stub.Generate(pb.GenerateRequest(prompt="x"), wait_for_ready=True)
                    await s.scheduler.submitted(number + 1)
                    s.scheduler.answer(s.scheduler.submits[number].number, [70])
                    await call
            for one in held:
                one.close()

    asyncio.run(main())


def test_a_client_between_two_calls_outlives_those_that_never_made_one(serving):
    async def main():
        async with serving(max_connections=16) as s, own_connection(s.target) as channel:
            call = generate(channel)
            await s.scheduler.submitted()
            s.scheduler.answer(s.scheduler.submits[0].number, [70])
            await call
            held = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(40)]  # all of them heard of later
            await s.until(lambda: s.figures()["connections", "grpc"] == 8)
            await s.until(lambda: sum(map(is_closed, held)) >= 33)
            assert channel.get_state() is grpc.ChannelConnectivity.READY
            for one in held:
                one.close()

    asyncio.run(main())


def test_new_connections_and_clients_of_a_moment_ago_are_closed_last():
    now = 1000.0
    ages = {"calls": 900.0, "called": 900.0, "silent": 3.0, "longer silent": 9.0, "new": 0.1, "less new": 1.0}
    called = {"calls": now - 5, "called": now - 60}
    port = {name: ("127.0.0.1", number) for number, name in enumerate(ages)}
    order = _closing_order(
        {port[name]: now - age for name, age in ages.items()}, {port[name]: at for name, at in called.items()}, now
    )
    named = [list(ages)[number] for _, number in order]
    assert named == ["longer silent", "silent", "called", "less new", "new", "calls"]


class Gone:
    """The context of a call whose client has left."""

    async def abort(self, *status: object) -> None:
        raise grpc.aio.InternalError("Failed execute_batch")


def test_a_client_that_leaves_while_it_is_told_something_is_no_error_of_ours(caplog):
    async def write(request, context) -> None:
        raise grpc.aio.InternalError("Failed execute_batch")

    async def main():
        status = to_status(RequestError("QUEUE_FULL", "full"))
        with pytest.raises(asyncio.CancelledError):
            await abort(Gone(), status)

        async def continuation(details):
            return grpc.unary_unary_rpc_method_handler(write)

        interceptor = ErrorInterceptor(WorkPool("bodies", 1), ByteBudget(1 << 20, lambda outcome: None), 1 << 20)
        guarded = await interceptor.intercept_service(continuation, None)
        with pytest.raises(asyncio.CancelledError):
            await guarded.unary_unary(b"", Gone())

    asyncio.run(main())
    assert not caplog.records


def is_closed(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        while piece := one.recv(4096):
            assert piece
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    return True


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:80", ("127.0.0.1", 80)),
        ("ipv6:%5B::1%5D:80", ("::1", 80)),
        ("ipv6:%5B::ffff:10.0.0.1%5D:80", ("10.0.0.1", 80)),
        ("ipv6:%5Bfe80::1%25eth0%5D:80", ("fe80::1", 80)),
        ("unknown", None),
        ("", None),
    ],
)
def test_a_peer_is_found_by_its_address(peer, address):
    assert _address(peer) == address


def test_calls_whose_peer_the_library_does_not_know_end_nothing(serving):
    """Each such call ended the whole frontend at the next look."""

    async def main():
        async with serving(max_connections=16) as s:
            calls = s.server._grpc._calls
            calls.open["unknown"] += 1
            calls.ended_at["unknown"] = time.monotonic()
            held = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(14)]  # so many that all is looked at
            await s.until(lambda: "unknown" not in calls.ended_at)
            await s.until(lambda: s.figures()["connections_closed_total", "grpc"] > 0)
            call = asyncio.create_task(s.client.generate(GenerateRequest(input="x")))
            await s.scheduler.submitted()
            s.scheduler.answer(s.scheduler.submits[0].number, [70])
            assert (await call).outputs
            for one in held:
                one.close()

    asyncio.run(main())


def test_a_look_for_which_no_descriptor_is_left_ends_nothing(serving, monkeypatch, caplog):
    def used_up(folder: str) -> list[str]:
        raise OSError(errno.EMFILE, "Too many open files", folder)

    async def main():
        async with serving() as s:
            with monkeypatch.context() as patch:
                patch.setattr("quire.frontend.grpc.connections.os.listdir", used_up)
                await s.until(lambda: "connections were not counted" in caplog.text)
            await s.client.server_info()
            await s.until(lambda: s.figures()["connections", "grpc"] == 1)

    asyncio.run(main())


def test_doors_share_the_descriptors_and_too_few_are_refused(monkeypatch):
    def limit(number: int) -> None:
        monkeypatch.setattr("resource.getrlimit", lambda _: (number, number))

    limit(256)
    assert descriptors.connection_shares(0, has_http=True) == (96, 32)
    assert descriptors.connection_shares(0, has_http=False) == (0, 128)
    assert descriptors.connection_shares(40, has_http=True) == (30, 10)
    with pytest.raises(ValueError, match=r"max_connections: 1000 need 1128 open files .* may have 256; raise"):
        descriptors.connection_shares(1000, has_http=True)
    limit(1 << 20)
    assert sum(descriptors.connection_shares(0, has_http=True)) == 32_768
    limit(-1)
    assert sum(descriptors.connection_shares(0, has_http=True)) == 32_768
    limit(100)
    with pytest.raises(ValueError, match="64 connections need 192 open files and this process may have 100; raise"):
        descriptors.connection_shares(0, has_http=True)
