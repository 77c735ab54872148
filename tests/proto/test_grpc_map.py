"""Protobuf and values: nothing is lost on the way, nothing unknown is ignored."""

import dataclasses
from array import array
from urllib.parse import quote

import grpc
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts.examples import examples

from quire.proto import api, grpc_map, grpc_status
from quire.proto.generated import quire_pb2 as pb
from quire.proto.messages import errors
from quire.proto.messages.message import Usage
from quire.proto.messages.params import ParameterError, Structured
from quire.proto.token_column import STEP

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=20)
DOUBLE = st.floats(allow_nan=False)
CALLS = st.lists(st.builds(api.ToolCall, TEXT, TEXT, TEXT), max_size=2).map(tuple)
NAMED = TEXT.filter(bool)
IMAGES = (
    st.builds(api.ImagePart, url=NAMED, uuid=TEXT, detail=TEXT)
    | st.builds(api.ImagePart, data=st.binary(min_size=1, max_size=20), uuid=TEXT, detail=TEXT)
    | st.builds(api.ImagePart, uuid=NAMED)
)
VIDEOS = (
    st.builds(api.VideoPart, url=NAMED, uuid=TEXT)
    | st.builds(api.VideoPart, data=st.binary(min_size=1, max_size=20), uuid=TEXT)
    | st.builds(api.VideoPart, frames=st.lists(st.binary(max_size=9), min_size=1, max_size=3).map(tuple), uuid=TEXT)
    | st.builds(api.VideoPart, uuid=NAMED)
)
SETTINGS = st.builds(api.MediaSettings, st.none() | INT64, st.none() | INT64, st.none() | DOUBLE, st.none() | INT64)
PARTS = st.lists(st.builds(api.TextPart, TEXT) | IMAGES | VIDEOS, min_size=1, max_size=3).map(tuple)
TURN = st.builds(api.ChatMessage, TEXT, TEXT | PARTS, TEXT, TEXT, CALLS, TEXT)
CHAT = st.builds(
    api.Chat,
    st.lists(TURN, max_size=3),
    st.none() | st.booleans(),
    st.none() | st.booleans(),
    st.lists(st.builds(api.Tool, TEXT, TEXT, TEXT, st.booleans()), max_size=2).map(tuple),
    st.none() | TEXT,
    st.none() | st.booleans(),
    TEXT,
    media_settings=SETTINGS,
)
STRUCTURED = (
    st.just(Structured("json_object"))
    | st.builds(Structured, st.sampled_from(("json_schema", "regex", "grammar", "structural_tag")), TEXT)
    | st.lists(TEXT, max_size=3).map(lambda texts: Structured("choice", msgspec.json.encode(texts).decode()))
)
BY_TYPE = {
    "str | None": st.none() | TEXT,
    "bool | None": st.none() | st.booleans(),
    "int | None": st.none() | INT64,
    "float | None": st.none() | DOUBLE,
    "Sequence[str]": st.lists(TEXT, max_size=3).map(tuple),
    "Sequence[int]": st.lists(INT64, max_size=3).map(tuple),
    "Structured | None": st.none() | STRUCTURED,
    "str": TEXT,
    "Mapping[int, float]": st.dictionaries(INT64, DOUBLE, max_size=3),
}


def strategy(field: dataclasses.Field[object]) -> st.SearchStrategy[object]:
    if field.name == "input":
        return st.none() | TEXT | st.lists(INT64, max_size=4).map(tuple) | CHAT
    if field.name == "inputs":
        return st.lists(TEXT | st.lists(INT64, max_size=3).map(tuple) | CHAT, max_size=3)
    name = str(field.type).replace("collections.abc.", "").replace("<class '", "").replace("'>", "")
    name = name.replace("quire.proto.messages.params.", "")
    return BY_TYPE[name]


def plain(source: object) -> object:
    """Token ids come as a column."""
    return tuple(source) if isinstance(source, array) else source


@examples(100)
@given(st.fixed_dictionaries({field.name: strategy(field) for field in dataclasses.fields(api.GenerateRequest)}))
def test_requests_survive_the_way_through_protobuf(values):
    request = api.GenerateRequest(**values)
    raw = grpc_map.generate_request_message(request).SerializeToString()
    grpc_map.check_contents(raw, pb.GenerateRequest)
    message = pb.GenerateRequest.FromString(raw)
    got = grpc_map.generate_request(message)
    assert dataclasses.replace(got, input=plain(got.input)) == request


@examples(50)
@given(st.fixed_dictionaries({field.name: strategy(field) for field in dataclasses.fields(api.EmbedRequest)}))
def test_embed_requests_survive_the_way_through_protobuf(values):
    request = api.EmbedRequest(**values)
    message = pb.EmbedRequest.FromString(grpc_map.embed_request_message(request).SerializeToString())
    got = grpc_map.embed_request(message)
    assert dataclasses.replace(got, inputs=[plain(one) for one in got.inputs]) == request


@examples(50)
@given(st.fixed_dictionaries({field.name: strategy(field) for field in dataclasses.fields(api.ClassifyRequest)}))
def test_classify_requests_survive_the_way_through_protobuf(values):
    request = api.ClassifyRequest(**values)
    message = pb.ClassifyRequest.FromString(grpc_map.classify_request_message(request).SerializeToString())
    got = grpc_map.classify_request(message)
    assert dataclasses.replace(got, inputs=[plain(one) for one in got.inputs]) == request


@examples(50)
@given(st.fixed_dictionaries({field.name: strategy(field) for field in dataclasses.fields(api.ScoreRequest)}))
def test_score_requests_survive_the_way_through_protobuf(values):
    request = api.ScoreRequest(**values)
    message = pb.ScoreRequest.FromString(grpc_map.score_request_message(request).SerializeToString())
    assert grpc_map.score_request(message) == request


def test_vectors_and_scores_survive_the_way_through_protobuf():
    vectors = api.Embeddings("id", "m", [(0.5, -1.0), ()], 7)
    sent = grpc_map.embeddings_message(vectors).SerializeToString()
    assert grpc_map.embeddings(pb.EmbedResponse.FromString(sent)) == vectors
    scores = api.Scores("id", "m", (0.25, -1.0), 7)
    sent = grpc_map.scores_message(scores).SerializeToString()
    assert grpc_map.scores(pb.ScoreResponse.FromString(sent)) == scores
    found = api.Classifications("id", "m", ("no", "yes"), [(0.25, 0.75), (1.0, 0.0)], 7)
    sent = grpc_map.classifications_bytes(found)
    assert grpc_map.classifications(pb.ClassifyResponse.FromString(sent)) == found
    assert found.best == ["yes", "no"]
    found = api.Classifications("id", "m", ("no", "yes"), [], 3, ((0.25, 0.75, 1.0, 0.0), (0.5, 0.5)))
    sent = grpc_map.classifications_bytes(found)
    assert grpc_map.classifications(pb.ClassifyResponse.FromString(sent)) == found
    assert (found.of_tokens(0), found.of_tokens(1)) == ([(0.25, 0.75), (1.0, 0.0)], [(0.5, 0.5)])
    many = tuple(float(number) for number in range(3 * STEP + 5))
    found = api.Classifications("id", "m", ("no",), [], 3, (many, (0.5,), many, ()))
    assert grpc_map.classifications(pb.ClassifyResponse.FromString(grpc_map.classifications_bytes(found))) == found


def test_an_explanation_survives_the_way_through_protobuf(examples):
    told = examples["ExplainReply"]
    message = pb.ExplainRequestResponse.FromString(grpc_map.explanation_message(told).SerializeToString())
    assert grpc_map.explanation(message) == api.Explained(told.label, list(told.stories))


def test_a_status_survives_the_way_through_protobuf(examples):
    told = examples["StatusReply"]
    message = pb.GetStatusResponse.FromString(grpc_map.status_message(told).SerializeToString())
    assert grpc_map.status(message) == api.EngineStatus(told.now, told.load, told.outputs, (16,), told.steps)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.Structured(), "structured"),
        (pb.Structured(json_object=False), r"structured\.json_object"),
    ],
)
def test_a_constraint_that_constrains_nothing_is_refused_by_name(message, field):
    with pytest.raises(ParameterError, match=field):
        grpc_map.generate_request(pb.GenerateRequest(structured=message))


def test_a_tool_without_a_name_and_an_empty_input_are_refused_by_name():
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="x")], tools=[pb.Tool(description="y")])
    with pytest.raises(ParameterError, match=r"chat\.tools\[0\]\.name"):
        grpc_map.generate_request(pb.GenerateRequest(chat=chat))
    with pytest.raises(ParameterError, match=r"inputs\[0\]"):
        grpc_map.embed_request(pb.EmbedRequest(inputs=[pb.EmbedInput()]))


def test_every_field_of_the_contract_is_a_field_of_the_value():
    names = {field.name for field in pb.GenerateRequest.DESCRIPTOR.fields}
    assert names - {"prompt", "prompt_token_ids", "chat"} == {
        field.name for field in dataclasses.fields(api.GenerateRequest)
    } - {"input"}


LOGPROB = api.TokenLogprobs(5, "a", -0.5, 2, (api.Candidate(4, "b", -0.25),), (api.Candidate(9, "c", -3.0),))
FINISHES = [
    api.Finished(0, "stop", Usage(1, 2, 3, 0.5, 0.25, 0.125, 1, 1), "END"),
    api.Finished(1, "stop", Usage(1, 2, 3, 0.5, 0.25, 0.125), None, 0),
    api.Finished(2, "error", Usage(1, 2, 3, 0.5, 0.25, 0.125), None, None, api.ErrorDetail("NUMERICAL", "bad", False)),
]


@pytest.mark.parametrize(
    "event",
    [
        api.Started("id", "m", 3, (1, 2, 3)),
        api.PromptLogprobs(1, (LOGPROB,)),
        api.Delta(1, "é🙂", (1, 2), (LOGPROB,)),
        api.Delta(0, "", (1,), (), "hm", (api.ToolCallDelta(0, "c1", "f"), api.ToolCallDelta(0, "", "", "{}"))),
        *FINISHES,
    ],
)
def test_events_survive_the_way_through_protobuf(event):
    message = pb.StreamEvent.FromString(grpc_map.event_message(7, event).SerializeToString())
    assert message.sequence == 7
    assert grpc_map.event(message) == event


def test_generations_survive_the_way_through_protobuf():
    outputs = [api.Output("x", (1,), (LOGPROB,), finished) for finished in FINISHES]
    outputs.append(api.Output("x", (1,), (), FINISHES[0], "hm", (api.ToolCall("c1", "f", "{}"),)))
    call = api.ToolCall("c1", "f", "{}")
    outputs.append(api.Output("xy", (1,), (), FINISHES[0], "hm", (call,), ("x", call, api.Thought("hm"), "y")))
    value = api.Generation("id", "m", 2, outputs, (3, 4), (LOGPROB,))
    message = pb.GenerateResponse.FromString(grpc_map.generation_message(value).SerializeToString())
    assert grpc_map.generation(message) == value


def test_an_unknown_field_is_refused_by_number_at_any_depth():
    plain = pb.GenerateRequest(prompt="x").SerializeToString()
    with pytest.raises(ParameterError, match="field number 999") as caught:
        grpc_map.check_contents(plain + b"\xba\x3e\x01x", pb.GenerateRequest)
    assert caught.value.reason == "UNKNOWN_FIELD"
    nested = pb.Chat(messages=[pb.ChatMessage.FromString(b"\x0a\x01u\x12\x01x\x9a\x01\x01y")])
    with pytest.raises(ParameterError, match=r"chat\.messages\.field number 19"):
        grpc_map.check_contents(pb.GenerateRequest(chat=nested).SerializeToString(), pb.GenerateRequest)


def test_a_chat_message_without_content_is_refused_by_name():
    chat = pb.Chat(messages=[pb.ChatMessage(role="user")])
    with pytest.raises(ParameterError, match=r"chat\.messages\[0\]\.content"):
        grpc_map.generate_request(pb.GenerateRequest(chat=chat))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"content": "x", "content_parts": [pb.ContentPart(text="y")]}, r"content_parts: excludes content"),
        (
            {"content_parts": [pb.ContentPart(text="y"), pb.ContentPart()]},
            r"content_parts\[1\]: is empty; set text, image or video",
        ),
        (
            {"content_parts": [pb.ContentPart(image=pb.ImagePart(url="http://x", data=b"y"))]},
            r"content_parts\[0\]\.image\.data: excludes url",
        ),
        ({"content_parts": [pb.ContentPart(image=pb.ImagePart(detail="low"))]}, r"content_parts\[0\]\.image: is empty"),
        (
            {"content_parts": [pb.ContentPart(video=pb.VideoPart(data=b"y", frames=[b"z"]))]},
            r"content_parts\[0\]\.video\.frames: excludes data",
        ),
        (
            {"content_parts": [pb.ContentPart(video=pb.VideoPart())]},
            r"content_parts\[0\]\.video: is empty; set url, data or frames, or the uuid",
        ),
    ],
)
def test_a_content_that_is_neither_a_text_nor_parts_is_refused_by_name(content, text):
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", **content)])
    with pytest.raises(ParameterError, match=rf"chat\.messages\[0\]\.{text}"):
        grpc_map.generate_request(pb.GenerateRequest(chat=chat))


def test_a_part_of_another_kind_is_refused_by_number():
    turn = pb.ChatMessage(role="user", content_parts=[pb.ContentPart.FromString(b"\x22\x03cat")])
    with pytest.raises(ParameterError, match=r"chat\.messages\.content_parts\.field number 4"):
        grpc_map.check_contents(
            pb.GenerateRequest(chat=pb.Chat(messages=[turn])).SerializeToString(), pb.GenerateRequest
        )


@pytest.mark.parametrize("reason", sorted(errors.REASONS))
def test_every_reason_reaches_the_client_with_its_details(reason):
    meaning = errors.REASONS[reason]
    sent = api.RequestError(
        reason, "why", field="top_p", retry_after_seconds=1.5, request_id="r1", metadata={"completion_tokens": "3"}
    )
    code, message, trailers = grpc_status.to_status(sent)
    got = grpc_status.from_status(code, message, trailers)
    assert (got.reason, got.message, got.field, got.request_id) == (reason, "why", "top_p", "r1")
    assert got.status == meaning.status == code.name
    assert got.retryable == meaning.retryable
    assert got.retry_after_seconds == 1.5
    assert got.metadata["completion_tokens"] == "3"
    assert dict(trailers)[grpc_status.PUSHBACK_KEY] == "1500"


@pytest.mark.parametrize("character", ["x", "%", "é", "漢", "🙂"])
def test_error_details_stay_under_four_kilobytes(character):
    """Of a message the library percent-encodes all but visible ASCII."""
    long = character * 100_000
    error = api.RequestError("INVALID_PARAMETER", long, field=long, request_id="z" * 128)
    assert api.RequestError("INVALID_PARAMETER", error.message).message == error.message
    _, message, trailers = grpc_status.to_status(error)
    assert len(quote(message)) + sum(len(value) for _, value in trailers) < 4096


def test_a_transport_error_has_no_reason_but_a_status():
    error = grpc_status.from_status(grpc.StatusCode.UNAVAILABLE, "connection refused", ())
    assert (error.reason, error.status, error.retryable) == ("", "UNAVAILABLE", True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", 2**63),
        ("max_tokens", 1.5),
        ("input", "\udcff"),
        ("input", [2**63]),
        ("stop", "END"),
        ("model", "\ud800"),
        ("input", api.Chat([api.ChatMessage("user", "\udcff")])),
        ("logit_bias", {"a": 1.0}),
    ],
)
def test_a_value_that_cannot_be_sent_is_refused_by_name_before_anything_is_sent(field, value):
    with pytest.raises(api.RequestError, match=f"^{field}: cannot be sent: ") as caught:
        grpc_map.generate_request_message(api.GenerateRequest(**{"input": "x", field: value}))
    assert (caught.value.reason, caught.value.field) == ("INVALID_PARAMETER", field)
