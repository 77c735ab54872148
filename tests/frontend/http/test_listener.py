"""The HTTP port: where it is told, who may share it, and what a connection costs."""

import asyncio
import contextlib
import json
import resource
import socket

import msgspec
import pytest
from parts.clock import GUARD

from quire.deploy.flags.arguments import UsageError
from quire.deploy.supervisor.port_claim import PortClaim
from quire.frontend import ready_file
from quire.frontend.config import FrontendConfig
from quire.frontend.http import listener
from quire.frontend.http.listener import HttpListener
from quire.frontend.metrics.metrics import Metrics
from quire.frontend.ready_file import ReadyFile
from quire.frontend.server import FrontendServer, ListenError
from quire.proto.process import addresses
from quire.proto.process.addresses import listen_addresses

IDLE = 500


def test_the_ready_file_tells_both_real_ports_and_minus_one_means_no_http(web, serving, tmp_path):
    ready = tmp_path / "ready.json"

    async def main():
        async with web(wait=False, ready_file=str(ready)) as w:
            ports = {"grpc_port": w.serving.port, "http_port": w.port}
            assert json.loads(ready.read_text()) == {**ports, "ready": False}
            await w.serving.ready()
            await w.until(lambda: json.loads(ready.read_text()) == {**ports, "ready": True})
        async with serving(wait=False, ready_file=str(ready)) as s:
            assert json.loads(ready.read_text()) == {"grpc_port": s.port, "http_port": -1, "ready": False}

    asyncio.run(main())


def test_a_supervisor_that_cannot_be_told_is_logged_when_that_begins_and_when_it_is_over(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(ready_file, "PULSE_SECONDS", 0.01)
    folder, gone = tmp_path / "run", tmp_path / "gone"
    folder.mkdir()
    path = folder / "frontend-0.ready"

    async def main():
        written = ReadyFile(str(path))
        written.write_state({"grpc_port": 1}, ready=False)
        writes = []
        write = written._write
        written._write = lambda: (writes.append(1), write())
        keeping = asyncio.create_task(written.keep())
        folder.rename(gone)
        async with asyncio.timeout(GUARD):
            while len(writes) < 3:
                await asyncio.sleep(0.001)
            gone.rename(folder)
            path.unlink()
            while not path.exists():
                await asyncio.sleep(0.001)
        keeping.cancel()

    asyncio.run(main())
    begun, over = [record.message for record in caplog.records]
    assert "cannot be told about this frontend: [Errno 2]" in begun
    assert over == "the supervisor is told about this frontend again"


def test_a_machine_without_descriptors_is_logged_when_that_begins_and_when_it_is_over(web, monkeypatch, caplog):
    monkeypatch.setattr(listener, "ACCEPT_PAUSE_SECONDS", 0.01)
    tries = []
    resume = HttpListener._resume
    monkeypatch.setattr(HttpListener, "_resume", lambda *a: (tries.append(1), resume(*a)))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def main():
        async with web(lost_after_seconds=30.0) as w:
            tries.clear()
            caplog.clear()  # what the start warned of
            with socket.create_connection(("127.0.0.1", w.port)) as client:
                resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno(), hard))
                try:
                    await w.until(lambda: len(tries) > 3)
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                await w.until(lambda: w.server._http.num_connections == 1)
                await w.until(lambda: len(caplog.records) == 2)

    asyncio.run(main())
    begun, over = [record.message for record in caplog.records]
    assert begun.endswith("no connection can be taken: Too many open files")
    assert over.endswith("connections are taken again")


def test_frontends_share_a_port_that_others_cannot_take(web, serving):
    async def app(scope, receive, send) -> None:
        raise AssertionError("not asked")

    async def main():
        async with web(wait=False) as w:
            config = msgspec.structs.replace(w.server._config, http_port=w.port)
            sibling = HttpListener(config, app, listen_addresses("127.0.0.1"), 8, Metrics())
            assert await sibling.start() == w.port
            await sibling.close(0.0)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(ListenError, match="http_port"):
                async with serving(wait=False, http_port=taken.getsockname()[1]):
                    raise AssertionError("it listens where another does")

    asyncio.run(main())


V4, V6 = "127.0.0.1", "::1"
NAMES = {"a.test": [V4], "aaaa.test": [V6], "both.test": [V6, V4], "twice.test": [V4, V4]}
HOSTS = [
    ("0.0.0.0", {V4}), ("::", {V4, V6}), ("0", {V4}), ("::0", {V4, V6}), (V4, {V4}), (V6, {V6}),
    ("::ffff:127.0.0.1", {V4}), ("a.test", {V4}), ("aaaa.test", {V6}), ("both.test", {V4, V6}), ("twice.test", {V4}),
]  # fmt: skip
WITHOUT_IPV6 = [("both.test", {V4}), ("::", set()), ("aaaa.test", set()), ("no.test", set())]


@pytest.mark.parametrize(
    ("host", "opened", "has_ipv6"), [*((*one, True) for one in HOSTS), *((*one, False) for one in WITHOUT_IPV6)]
)
def test_both_doors_open_the_addresses_that_the_resolver_has_of_a_host_and_no_other(
    web, monkeypatch, host, opened, has_ipv6
):
    resolve = socket.getaddrinfo

    def resolved(name, *args, **kwargs):
        if name == "no.test":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [entry for one in NAMES.get(name, [name]) for entry in resolve(one, *args, **kwargs)]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    if not has_ipv6:
        monkeypatch.setattr(addresses, "has_ipv6", lambda: False)
    elif not addresses.has_ipv6():  # the machine of these tests has none
        opened = opened - {V6}

    def reached(port: int) -> set[str]:
        found = set()
        for address in (V4, V6):
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection((address, port)):
                found.add(address)
        return found

    async def main():
        if not opened:
            config = FrontendConfig(scheduler_address="ipc://none", model="none", served_model_names=("m",), host=host)
            with pytest.raises(ListenError, match=f"host: {host}: "):
                FrontendServer(config)
            with pytest.raises(UsageError, match=f"--host {host} --grpc-port 0: "):
                PortClaim(host, 0)
            return
        with contextlib.closing(PortClaim(host, 0)) as grpc, contextlib.closing(PortClaim(host, 0)) as http:
            for taken in (grpc, http):
                with pytest.raises(UsageError, match="in use"):
                    PortClaim(host, taken.number)
            async with web(wait=False, host=host, grpc_port=grpc.number, http_port=http.number):
                assert reached(grpc.number) == reached(http.number) == opened

    asyncio.run(main())


def resident_bytes() -> int:
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("VmRSS")).split()[1]) << 10


def test_idle_connections_are_cheap_and_do_not_keep_others_out(web):
    async def main():
        async with web(lost_after_seconds=30.0) as w:
            before = resident_bytes()
            idle = [socket.create_connection(("127.0.0.1", w.port)) for _ in range(IDLE)]
            await w.until(lambda: w.server._http.num_connections >= IDLE)
            assert resident_bytes() - before < IDLE * (100 << 10)
            assert (await w.client.get("/health")).status_code == 200
            for one in idle:
                one.close()
            await w.until(lambda: w.server._http.num_connections <= 1)

    asyncio.run(main())
