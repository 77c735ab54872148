"""Who may call over gRPC, with which key, and what an operator may change while the server runs."""

import asyncio
import logging
import os
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from parts.clock import GUARD

from quire.frontend.config import FrontendConfig
from quire.frontend.grpc.key_interceptor import ADMIN, EXEMPT
from quire.frontend.security.keys import KeyFileError, Keyring
from quire.proto.api import RequestError
from quire.proto.client import AsyncClient
from quire.proto.generated import quire_pb2 as pb

USER, OTHER, BOSS = "user-key-1234", "other-key-1234", "boss-key-1234"


def keyring(environment: dict[str, str] | None = None, clock=lambda: 0.0, **changes: str) -> Keyring:
    config = FrontendConfig(scheduler_address="ipc:///x", model="/m", served_model_names=("m",), **changes)
    return Keyring(config, environment or {}, clock)


def verdict(ring: Keyring, need: str, key: str | None) -> str:
    refusal = ring.refusal(need, key)
    return refusal.reason if refusal else "open"


def methods() -> list[str]:
    """From the descriptors, not from a list of ours."""
    descriptors = [*pb.DESCRIPTOR.services_by_name.values(), *health_pb2.DESCRIPTOR.services_by_name.values()]
    found = [f"/{method.containing_service.full_name}/{method.name}" for d in descriptors for method in d.methods]
    return [*found, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "/no.such.Service/Method"]


async def status_of(channel: grpc.aio.Channel, method: str, *keys: str) -> grpc.StatusCode:
    metadata = [("authorization", f"Bearer {key}") for key in keys]
    call = channel.unary_stream(method)(b"", metadata=metadata, timeout=GUARD)
    try:
        await call.read()
    except grpc.aio.AioRpcError as error:
        return error.code()
    call.cancel()
    return grpc.StatusCode.OK


def test_every_method_but_health_needs_a_key(serving, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# operators\nfirst-key-1\n\nsecond-key-2\n")
    wrong = [
        (),
        (("authorization", "Bearer wrong-key-00"),),
        (("authorization", "first-key-1"),),
        (("authorization", "Basic first-key-1"),),
        (("authorization", "Bearer "),),
        (("authorization", "Bearer first-key-1"), ("authorization", "Bearer wrong-key-00")),
    ]

    async def main():
        async with serving(api_key_file=str(keys), wait=False) as s, grpc.aio.insecure_channel(s.target) as channel:
            await s.ready()
            for method in methods():
                for metadata in wrong:
                    call = channel.unary_stream(method)(b"", metadata=metadata, timeout=GUARD)
                    if method in EXEMPT:
                        assert await call.read()
                        call.cancel()
                        continue
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await call.read()
                    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED, method
                    assert caught.value.details() == "a valid bearer key is needed"
            assert {method.rpartition("/")[0] for method in EXEMPT} == {"/grpc.health.v1.Health"}
            for key in ("first-key-1", "second-key-2"):
                async with AsyncClient(s.target, key) as client:
                    assert (await client.server_info()).state == "ready"

    asyncio.run(main())


def test_what_reaches_everybodys_requests_needs_an_admin_key(serving, tmp_path):
    (tmp_path / "keys").write_text(USER)
    (tmp_path / "admins").write_text(BOSS)
    files = {"api_key_file": str(tmp_path / "keys"), "admin_key_file": str(tmp_path / "admins")}
    denied, unknown = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED

    async def main():
        async with serving(wait=False, **files) as s, grpc.aio.insecure_channel(s.target) as channel:
            await s.ready()
            for method in methods():
                given = await status_of(channel, method, USER)
                assert (given is denied) == (method in ADMIN), method
                assert await status_of(channel, method, BOSS) not in (denied, unknown), method
            async with AsyncClient(s.target, BOSS) as boss:
                assert await boss.abort("nobodys") == {"nobodys": 0}
                assert (await boss.server_info()).state == "ready"  # an admin key opens everything else, too

    assert {f"/quire.v1.Control/{name}" for name in ("Abort", "ExplainRequest", "GetStatus")} == ADMIN
    assert set(methods()) >= ADMIN
    asyncio.run(main())


def test_without_an_admin_key_file_users_learn_which_flag_would_let_them(serving, tmp_path):
    (tmp_path / "keys").write_text(USER)

    async def main():
        async with serving(wait=False, api_key_file=str(tmp_path / "keys")) as s:
            await s.ready()
            async with AsyncClient(s.target, USER) as client:
                with pytest.raises(RequestError, match="--admin-key-file") as caught:
                    await client.abort("mine")
                assert (caught.value.status, caught.value.reason) == ("PERMISSION_DENIED", "PERMISSION_DENIED")

    asyncio.run(main())


def test_one_rule_decides_for_every_kind_of_key(tmp_path):
    (tmp_path / "keys").write_text(f"{USER}\n{OTHER}\n")
    (tmp_path / "admins").write_text(BOSS)
    both = keyring(api_key_file=str(tmp_path / "keys"), admin_key_file=str(tmp_path / "admins"))
    table = {
        None: ("open", "UNAUTHENTICATED", "UNAUTHENTICATED"),
        "": ("open", "UNAUTHENTICATED", "UNAUTHENTICATED"),
        "wrong-key-1234": ("open", "UNAUTHENTICATED", "UNAUTHENTICATED"),
        "\udcff": ("open", "UNAUTHENTICATED", "UNAUTHENTICATED"),
        USER: ("open", "open", "PERMISSION_DENIED"),
        OTHER: ("open", "open", "PERMISSION_DENIED"),
        BOSS: ("open", "open", "open"),
    }
    for key, expected in table.items():
        assert tuple(verdict(both, need, key) for need in ("nothing", "key", "admin")) == expected, key
    admins = keyring(admin_key_file=str(tmp_path / "admins"))
    assert [verdict(admins, need, None) for need in ("key", "admin")] == ["open", "UNAUTHENTICATED"]
    assert verdict(admins, "admin", BOSS) == "open"
    assert [verdict(keyring(), need, None) for need in ("key", "admin")] == ["open", "open"]


def test_keys_of_the_environment_count_beside_those_of_the_file(tmp_path):
    (tmp_path / "keys").write_text(USER)
    ring = keyring(
        {"QUIRE_API_KEY": f"{OTHER} another-key-1", "QUIRE_ADMIN_KEY": BOSS}, api_key_file=str(tmp_path / "keys")
    )
    for key in (USER, OTHER, "another-key-1", BOSS):
        assert verdict(ring, "key", key) == "open"
    assert verdict(ring, "admin", BOSS) == "open"
    assert verdict(ring, "admin", OTHER) == "PERMISSION_DENIED"
    with pytest.raises(KeyFileError, match=r"\$QUIRE_API_KEY: key 2") as caught:
        keyring({"QUIRE_API_KEY": f"{USER} tiny"})
    assert "tiny" not in str(caught.value)


@pytest.mark.parametrize("field", ["api_key_file", "admin_key_file"])
@pytest.mark.parametrize(
    "content", [None, b"", b"# nothing\n", b"short\n", b"with space in it\n", b"bell\x07bell-bell\n", b"\xff" * 9]
)
def test_a_useless_key_file_is_refused_without_showing_a_key(tmp_path, field, content):
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KeyFileError, match=field) as caught:
        keyring(**{field: str(path)})
    assert "with space" not in str(caught.value)


def replace(path: Path, text: str) -> None:
    """As an editor or a mounted secret does it."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    os.replace(fresh, path)


def test_a_changed_file_counts_at_the_next_use_and_is_looked_at_once_a_second(tmp_path):
    now = 0.0
    path = tmp_path / "keys"
    path.write_text(USER)
    ring = keyring(clock=lambda: now, api_key_file=str(path))
    replace(path, OTHER)
    now = 0.9
    assert verdict(ring, "key", USER) == "open"
    now = 1.1
    assert verdict(ring, "key", USER) == "UNAUTHENTICATED"
    assert verdict(ring, "key", OTHER) == "open"


@pytest.mark.parametrize("content", ["", "tiny", None])
def test_a_broken_new_file_keeps_the_old_keys_and_says_so_without_a_key(tmp_path, caplog, content):
    now = 0.0
    path = tmp_path / "keys"
    path.write_text(USER)
    ring = keyring(clock=lambda: now, api_key_file=str(path))
    if content is None:
        path.unlink()
    else:
        replace(path, content)
    now = 2.0
    assert verdict(ring, "key", USER) == "open"
    assert verdict(ring, "key", OTHER) == "UNAUTHENTICATED"
    assert "the keys of before stay in use" in caplog.text
    assert USER not in caplog.text
    replace(path, OTHER)
    now = 4.0
    assert [verdict(ring, "key", key) for key in (USER, OTHER)] == ["UNAUTHENTICATED", "open"]


async def is_let_in(client: AsyncClient) -> bool:
    try:
        await client.server_info()
    except RequestError as error:
        if error.reason != "UNAUTHENTICATED":
            raise
        return False
    return True


def test_a_running_server_takes_new_keys_and_forgets_old_ones(serving, tmp_path):
    path = tmp_path / "keys"
    path.write_text(USER)

    async def main():
        async with serving(wait=False, api_key_file=str(path)) as s:
            await s.ready()
            async with AsyncClient(s.target, USER) as old, AsyncClient(s.target, OTHER) as new:
                assert (await old.server_info()).state == "ready"
                replace(path, OTHER)
                async with asyncio.timeout(GUARD):
                    while not await is_let_in(new):
                        pass
                with pytest.raises(RequestError):
                    await old.server_info()

    asyncio.run(main())


def test_neither_keys_nor_prompts_reach_the_log_or_an_error(serving, tmp_path, caplog):
    """Bad requests of many kinds, with something secret wherever a client may put it."""
    (tmp_path / "keys").write_text(USER)
    odd, prompt = "canary-odd-key", "canary-prompt"
    requests = [
        pb.GenerateRequest(prompt=prompt, max_tokens=-1),
        pb.GenerateRequest(prompt=prompt, model="no-such-model"),
        pb.GenerateRequest(prompt=prompt * 1000),
        pb.GenerateRequest(prompt=prompt, temperature=float("nan")),
        pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="nobody", content=prompt)])),
    ]
    frames = [*(request.SerializeToString() for request in requests), b"\xff\xff" + prompt.encode()]

    async def main():
        config = {"api_key_file": str(tmp_path / "keys"), "wait": False}
        async with serving(**config) as s, grpc.aio.insecure_channel(s.target) as channel:
            await s.ready()
            s.scheduler.script = lambda submit: s.scheduler.outputs(
                submit.number, [], [s.scheduler.finish(submit.number, 0, "rejected", error="QUEUE_FULL")]
            )
            for frame in frames:
                for key in (USER, odd):
                    metadata = [("authorization", f"Bearer {key}")]
                    call = channel.unary_unary("/quire.v1.Inference/Generate")(frame, metadata=metadata, timeout=GUARD)
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await call
                    told = str(caught.value.details()) + str(caught.value.trailing_metadata())
                    for secret in (USER, odd, prompt, "Traceback", "0x7f", "/frontend/"):
                        assert secret not in told, (frame, told)

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    for secret in (USER, odd, prompt):
        assert secret not in caplog.text
