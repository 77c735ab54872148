"""Payloads in frames of their own. `Pictures` is a double of messages with pixels; ours go in files."""

import asyncio
import hashlib
import random
import time

import msgspec
import numpy as np
import pytest
import zmq
import zmq.asyncio
from parts.clock import GUARD

from quire.proto.messages.message import WireMessage
from quire.proto.messages.payload import Payload
from quire.proto.messages.plans import plan_hash
from quire.proto.transport.channel import AsyncDealer, Dealer, Router, ipc_address
from quire.proto.transport.wire import Decoder, WireError, encode

WAIT = GUARD


class Picture(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    width: int
    pixels: Payload


class Pictures(WireMessage, frozen=True):
    label: str
    pictures: tuple[Picture, ...]
    thumbnail: Payload | None = None


class Text(WireMessage, frozen=True):
    label: str


def decoder():
    return Decoder(Pictures | Text)


def pictures(*sizes, thumbnail=None):
    made = tuple(Picture(size, Payload(bytes([number]) * size)) for number, size in enumerate(sizes))
    return Pictures("cat", made, None if thumbnail is None else Payload(thumbnail))


def test_a_payload_is_no_part_of_the_first_frame_and_comes_back_where_it_was():
    sent = pictures(5, 0, 1 << 20, thumbnail=b"small")
    first, *payloads = encode(sent)
    assert len(first) < 40
    assert list(map(len, payloads)) == [5, 0, 1 << 20, 5]
    assert decoder().decode(first, *payloads) == sent


@pytest.mark.parametrize("shape", [(6,), (2, 3), (0, 3)])
def test_an_array_counts_in_bytes(shape):
    """Pixels and hidden states are numbers of several bytes, in rows."""
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    first, pixels = encode(Pictures("cat", (Picture(3, Payload(array.data)),)))
    received = decoder().decode(first, bytes(pixels))
    assert received.pictures[0].pixels.data == array.tobytes()
    assert plan_hash(first, pixels) == plan_hash(first, bytes(pixels)), "the sender chains plans as the receiver does"


def test_messages_without_payloads_are_one_frame():
    assert len(encode(Text("cat"))) == len(encode(pictures())) == 1
    assert decoder().decode(*encode(pictures())) == pictures()


@pytest.mark.parametrize(
    "change", [lambda frames: frames[:-1], lambda frames: frames[:1], lambda frames: (*frames, b"x")]
)
@pytest.mark.parametrize("message", [pictures(3, 4), pictures(3, thumbnail=b"t")])
def test_another_number_of_frames_is_refused(message, change):
    decode = decoder().decode
    with pytest.raises(WireError):
        decode(*change(encode(message)))
    assert decode(*encode(message)) == message, "it leaves nothing behind"


def test_a_frame_behind_a_message_without_payloads_is_refused():
    with pytest.raises(WireError, match="Text of 2 frames"):
        decoder().decode(*encode(Text("cat")), b"x")


def test_what_is_no_payload_is_neither_sent_nor_taken_for_one():
    with pytest.raises(TypeError, match="int64"):
        encode(Text(np.int64(3)))
    first = msgspec.msgpack.encode(["Pictures", "cat", [[3, b"abc"]]])
    with pytest.raises(WireError):
        decoder().decode(first, b"abc")


def test_damaged_frames_do_nothing_but_wire_error():
    rng, decode = random.Random(1), decoder().decode
    first, *payloads = encode(pictures(3, 4, thumbnail=b"t"))
    for _ in range(400):
        damaged = bytearray(first)
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            decode(bytes(damaged), *payloads[: rng.randint(0, 3)])
        except WireError:
            continue


def test_the_chain_of_plans_covers_every_frame_and_where_it_ends():
    chained = [
        (b"plan",),
        (b"plan", b"abc"),
        (b"plan", b"abd"),
        (b"plan", b"ab", b"c"),
        (b"plan", b"abc", b""),
        (b"planabc",),
    ]
    assert len({plan_hash(*frames) for frames in chained}) == len(chained)
    assert plan_hash(b"plan") == hashlib.sha256(b"plan").digest()[:8]
    assert plan_hash(b"plan", memoryview(b"abc")) == plan_hash(b"plan", b"abc")


@pytest.fixture
def address(tmp_path):
    return ipc_address(str(tmp_path), "s")


@pytest.fixture
def context():
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


def received(router):
    deadline = time.monotonic() + WAIT
    while (message := router.receive()) is None:
        assert time.monotonic() < deadline
        router.socket.poll(100)
    return message


def test_payloads_pass_both_ways_and_are_left_where_the_socket_put_them(context, address):
    router, dealer = Router(context, address, decoder()), Dealer(context, address, b"w", decoder())
    sent = pictures(1 << 20, 3, thumbnail=b"small")
    dealer.send(sent)
    identity, message = received(router)
    assert (identity, message) == (b"w", sent)
    pixels = message.pictures[0].pixels.data
    assert isinstance(pixels, memoryview)
    assert isinstance(pixels.obj, zmq.Frame)
    router.send(b"w", message)
    frames, back = dealer.receive_frames(WAIT)
    assert back == sent
    assert plan_hash(*frames) == plan_hash(*encode(sent))
    router.send(b"w", encode(Text("next")))
    assert dealer.receive(WAIT) == Text("next")
    router.close(), dealer.close()


def test_a_message_of_more_bytes_in_all_its_frames_than_the_limit_is_dropped_and_its_sender_stays(context, address):
    router = Router(context, address, decoder(), limit_bytes=1000)
    dealer = Dealer(context, address, b"w", decoder())
    dealer.send(pictures(400, 400, 400))
    dealer.send(pictures(400, 400))
    assert received(router)[1] == pictures(400, 400)
    assert router.num_bad_frames == 1
    router.close(), dealer.close()


def test_a_frontend_gets_payloads_and_survives_a_wrong_number_of_frames(context, address):
    router = Router(context, address, decoder())

    async def run():
        own = zmq.asyncio.Context()
        dealer = AsyncDealer(own, address, b"f", decoder())
        await dealer.send(pictures(3))
        assert received(router)[1] == pictures(3)
        router.send(b"f", (*encode(pictures(3)), b"x"))
        router.send(b"f", pictures(1 << 20, 5))
        with pytest.raises(WireError, match="Pictures of 3 frames"):
            await asyncio.wait_for(dealer.receive(), WAIT)
        assert await asyncio.wait_for(dealer.receive(), WAIT) == pictures(1 << 20, 5)
        dealer.close()
        own.term()

    asyncio.run(run())
    router.close()
