"""A protobuf message is looked at before it becomes values: fields nobody knows, and how much it holds."""

from array import array

import pytest

from quire.proto import grpc_map
from quire.proto.generated import quire_pb2 as pb
from quire.proto.grpc_map import contents
from quire.proto.messages.params import ParameterError
from quire.proto.token_column import token_column


def test_fields_nobody_knows_are_refused_at_the_first_of_them():
    raw = pb.GenerateRequest(prompt="x").SerializeToString() + b"\x98\x3f\x01" * 1_000_000
    steps = []
    with pytest.raises(ParameterError, match="field number 1011"):
        grpc_map.check_contents(raw, pb.GenerateRequest, lambda: bool(steps.append(1)))
    assert len(steps) == 1


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        pytest.param(pb.GenerateRequest, b"\x0a\x05abc", id="a text that is cut off"),
        pytest.param(pb.GenerateRequest, b"\x0a", id="no length"),
        pytest.param(pb.GenerateRequest, b"\xff" * 20, id="a tag without an end"),
        pytest.param(pb.GenerateRequest, b"\x1a\x04\x0a\x05ab", id="a message that is cut off"),
    ],
)
def test_what_is_no_message_is_told_to_be_malformed(kind, raw):
    with pytest.raises(contents.DecodeError):
        grpc_map.check_contents(raw, kind)


@pytest.mark.parametrize("raw", [b"\x08\x01", b"\x0d\x00\x00\x00\x00", b"\x0b\x0c", b"\xa1\x02\x00"])
def test_a_known_number_of_another_wire_type_is_unknown(raw):
    with pytest.raises(ParameterError, match="is unknown"):
        grpc_map.check_contents(raw, pb.GenerateRequest)


def test_numbers_may_come_one_by_one_or_together():
    one_by_one = b"".join(b"\x80\x02" + bytes([token]) for token in range(5))
    together = pb.GenerateRequest(stop_token_ids=range(5)).SerializeToString()
    for raw in (one_by_one, together):
        grpc_map.check_contents(raw, pb.GenerateRequest)
        assert tuple(pb.GenerateRequest.FromString(raw).stop_token_ids) == (0, 1, 2, 3, 4)


def test_what_a_message_may_hold_is_bounded_before_it_is_parsed():
    ids = pb.DetokenizeRequest(token_ids=[1000] * (contents.MAX_VALUES + 1)).SerializeToString()
    with pytest.raises(ParameterError, match="values; send less"):
        grpc_map.check_contents(ids, pb.DetokenizeRequest)
    texts = pb.GenerateRequest(stop=[""] * (contents.MAX_PARTS + 1)).SerializeToString()
    with pytest.raises(ParameterError, match="messages and texts; send less"):
        grpc_map.check_contents(texts, pb.GenerateRequest)


def test_token_ids_are_kept_as_a_column_and_wide_ones_as_they_are():
    assert token_column(list(range(10_000))) == array("q", range(10_000))
    assert token_column([1, 2**63]) == [1, 2**63]
    message = pb.GenerateRequest(prompt_token_ids=pb.TokenIds(ids=[1, 2, 3]))
    assert isinstance(grpc_map.generate_request(message).input, array)
