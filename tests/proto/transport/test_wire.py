"""The internal wire: golden bytes, closed unions, and random bytes that harm nothing."""

import json
import random
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import golden
from parts.examples import examples

from quire.proto.messages import plans, requests
from quire.proto.transport import wire

DECODERS = (wire.frontend_decoder, wire.scheduler_decoder, wire.plan_decoder, wire.worker_decoder)
UNIONS = (requests.FrontendMessage, requests.SchedulerMessage, plans.PlanMessage, plans.WorkerMessage)


def test_every_internal_message_has_a_golden_example(examples):
    names = {kind.__name__ for union in UNIONS for kind in typing.get_args(union)}
    assert names == set(examples)
    assert names == set(json.loads(golden.MESSAGES.read_text()))


def test_encodings_equal_the_golden_bytes(examples):
    """A difference is a change of the wire: raise PROTOCOL_VERSION, and run `tests/parts/golden.py` knowingly."""
    assert golden.messages(examples.values()).splitlines() == golden.MESSAGES.read_text().splitlines()


def test_golden_bytes_decode_to_the_examples(examples):
    told = json.loads(golden.MESSAGES.read_text())
    for union, make in zip(UNIONS, DECODERS, strict=True):
        decoder = make()
        for kind in typing.get_args(union):
            frames = [bytes.fromhex(frame) for frame in told[kind.__name__].split(" ")]
            assert decoder.decode(*frames) == examples[kind.__name__]


def test_a_message_of_another_direction_is_refused(examples):
    (frame,) = wire.encode(examples["Outputs"])
    with pytest.raises(wire.WireError):
        wire.frontend_decoder().decode(frame)


def test_sampling_parameters_are_checked_when_a_frame_is_decoded(examples):
    (frame,) = wire.encode(examples["Submit"])
    half = b"\xcb" + bytes.fromhex("3fe0000000000000")
    assert frame.count(half) == 1
    for bad in ("7ff8000000000000", "7ff0000000000000", "c000000000000000"):
        with pytest.raises(wire.WireError, match="temperature"):
            wire.frontend_decoder().decode(frame.replace(half, b"\xcb" + bytes.fromhex(bad)))


@examples(300)
@given(data=st.binary(max_size=200))
def test_random_bytes_do_nothing_but_wire_error(data):
    for make in DECODERS:
        try:
            make().decode(data)
        except wire.WireError:
            continue


def test_damaged_frames_do_nothing_but_wire_error(examples):
    rng = random.Random(1)
    decoders = [make() for make in DECODERS]
    for message in examples.values():
        frame = bytearray(wire.encode(message)[0])
        for _ in range(40):
            damaged = bytearray(frame)
            for _ in range(rng.randint(1, 3)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            for decoder in decoders:
                try:
                    decoder.decode(bytes(damaged[: rng.randint(0, len(damaged))]))
                except wire.WireError:
                    continue


def test_huge_declared_sizes_and_deep_nesting_are_refused_at_once():
    for data in (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 1_000_000):
        with pytest.raises(wire.WireError):
            wire.frontend_decoder().decode(data)
