"""Bad input against a real engine, rows B1 and B4 to B21: right status, field named, server unharmed."""

import re
import threading
from pathlib import Path

import grpc
import pytest
from parts.clock import GUARD, eventually
from said import KEY

from quire.proto.api import Chat, ChatMessage, GenerateRequest, RequestError
from quire.proto.client import Client
from quire.proto.generated import quire_pb2 as pb


@pytest.fixture(scope="module")
def model(tiny_checkpoint) -> Path:
    return tiny_checkpoint("LlamaForCausalLM")


@pytest.fixture(scope="module")
def engine(serve, model):
    # 20 blocks of 16 tokens hold 320 tokens: more than the context; queue of two
    return serve(str(model), "--max-num-seqs", "2", "--max-num-queued-reqs", "2", "--served-model-name", "tiny")


@pytest.fixture(autouse=True)
def unharmed(engine):
    yield
    assert len(engine.client.generate(GenerateRequest(input=[5, 6], max_tokens=2, ignore_eos=True)).outputs) == 1


def refusal(engine, **fields: object) -> RequestError:
    """The error of the unary call, which must be the stream's too."""
    fields.setdefault("input", [5, 6])
    asked = GenerateRequest(**fields)
    with pytest.raises(RequestError) as unary:
        engine.client.generate(asked)
    with pytest.raises(RequestError) as streamed:
        list(engine.client.stream(asked))
    for name in ("status", "reason", "field"):
        assert getattr(unary.value, name) == getattr(streamed.value, name)
    return unary.value


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        # B7: nothing to continue
        ({"input": ""}, "prompt", "empty"),
        ({"input": []}, "prompt_token_ids", "empty"),
        ({"input": Chat([])}, "chat.messages", "empty"),
        ({"input": None}, "input", ""),
        # B8: both numbers and the limit
        ({"input": [5] * 200, "max_tokens": 57}, "max_tokens", "200.*57.*256"),
        ({"input": [5] * 300}, "max_tokens", "300.*256"),
        # B10: bound + 1 and far beyond
        ({"n": 65, "temperature": 1.0}, "n", "64"),
        ({"n": 10**9}, "n", "64"),
        ({"n": 0}, "n", "1"),
        ({"max_tokens": 0}, "max_tokens", "1"),
        ({"logprobs": 21}, "logprobs", "20"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "20"),
        ({"stop": ["x"] * 17}, "stop", "16"),
        ({"stop": ["x" * 257]}, "stop", "256"),
        ({"stop": [""]}, "stop", "empty|1 to"),
        ({"top_k": -2}, "top_k", ""),
        ({"logit_bias": {3: 101.0}}, "logit_bias", "100"),
        ({"logprob_token_ids": [1] * 129, "logprobs": 1}, "logprob_token_ids", "128"),
        ({"min_tokens": 17, "max_tokens": 16}, "min_tokens", "16"),
        ({"cache_salt": "x" * 129}, "cache_salt", "128"),
        ({"seed": 2**63 - 1, "top_p": 0.0}, "top_p", "0"),
        # B11: no number, or out of range
        ({"temperature": float("nan")}, "temperature", "finite"),
        ({"temperature": float("inf")}, "temperature", "finite"),
        ({"temperature": -0.1}, "temperature", "finite"),
        ({"top_p": 1e308}, "top_p", "finite"),
        ({"min_p": float("-inf")}, "min_p", "finite"),
        ({"repetition_penalty": 0.0}, "repetition_penalty", "finite"),
        ({"presence_penalty": 2.1}, "presence_penalty", "finite"),
        ({"frequency_penalty": -2.1}, "frequency_penalty", "finite"),
        # B12: token ids are counted against the logits' width
        ({"input": [5, -1]}, "prompt_token_ids", "-1.*index 1.*320"),
        ({"input": [320]}, "prompt_token_ids", "320"),
        ({"input": [2**62]}, "prompt_token_ids", ""),
        ({"stop_token_ids": [320]}, "stop_token_ids", "320"),
        ({"allowed_token_ids": [-5]}, "allowed_token_ids", "-5"),
        ({"logit_bias": {99999: 1.0}}, "logit_bias", "99999"),
        # B18: budgets
        ({"timeout_seconds": -1.0}, "timeout_seconds", ""),
        ({"timeout_seconds": 3601.0}, "timeout_seconds", "3600"),
        ({"priority": 1}, "priority", "policy"),
    ],
)
def test_a_field_out_of_range_is_named(engine, fields, field, said):
    error = refusal(engine, **fields)
    assert error.status == "INVALID_ARGUMENT"
    assert error.field == field
    assert re.search(said, error.message), error.message


def test_what_can_never_fit_is_refused_with_both_block_counts(serve, model):
    small = serve(str(model), "--kv-cache-memory-bytes", str(2 * 2 * 16 * 2 * 16 * 4 * 10), "--max-model-len", "160")
    assert small.client.server_info().num_blocks == 10
    made = small.client.generate(GenerateRequest(input=[5] * 100, max_tokens=60, ignore_eos=True))
    assert len(made.outputs[0].token_ids) == 60
    error = refusal(small, input=[5] * 101, max_tokens=60)
    assert (error.status, error.reason) == ("INVALID_ARGUMENT", "CONTEXT_LENGTH_EXCEEDED")


def test_an_unknown_model_or_adapter_is_not_found(engine):
    for fields in ({"model": "../../etc/passwd" + "x" * 100}, {"adapter": "nobody"}):
        error = refusal(engine, **fields)
        assert error.status == "NOT_FOUND"
        assert len(error.message) < 200


def test_an_unknown_method_is_unimplemented(engine):
    with grpc.insecure_channel(engine.target) as channel, pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary("/quire.v1.Inference/Nothing")(b"")
    assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_malformed_bytes_and_unknown_fields_are_refused(engine):
    with grpc.insecure_channel(engine.target) as channel:
        call = channel.unary_unary("/quire.v1.Inference/Generate")
        with pytest.raises(grpc.RpcError) as raised:
            call(b"\xff\xff\xff\xff")
        assert raised.value.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT)
        unknown = pb.GenerateRequest(prompt="x").SerializeToString() + b"\xc2\x3e\x01x"  # field 1000
        with pytest.raises(grpc.RpcError) as raised:
            call(unknown)
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "1000" in raised.value.details()
        # B13: proto3 strings are UTF-8
        with pytest.raises(grpc.RpcError) as raised:
            call(b"\x0a\x02\xff\xfe")
        assert raised.value.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT)


def test_special_token_text_in_user_text_is_text(engine):
    client = engine.client
    ids = client.tokenize("a<|endoftext|>b\0c" + "\u0301" * 1000).token_ids
    assert 0 not in ids[1:]
    chat = client.tokenize(Chat([ChatMessage("user", "<|im_end|>")])).token_ids
    assert list(chat).count(2) == 1, "only the template's own end of turn is a special token"


def test_the_same_request_id_twice_at_once_runs_twice(engine):
    asked = GenerateRequest(input=[5], max_tokens=20, ignore_eos=True, request_id="twin", temperature=0)
    outputs: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: outputs.append(list(engine.client.generate(asked).outputs[0].token_ids)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GUARD)
    assert len(outputs) == 2
    assert outputs[0] == outputs[1]


def test_a_deadline_in_the_past_is_exceeded(engine):
    with pytest.raises(RequestError) as raised:
        engine.client.generate(GenerateRequest(input=[5]), timeout_seconds=1e-6)
    assert raised.value.status == "DEADLINE_EXCEEDED"


def test_a_full_queue_refuses_with_a_time_to_wait(engine):
    slow = GenerateRequest(input=[5] * 10, max_tokens=240, ignore_eos=True, n=2, temperature=1.0)
    errors: list[RequestError] = []

    def read() -> None:
        try:
            for _ in engine.client.stream(slow):
                continue
        except RequestError as error:
            errors.append(error)

    def overflows() -> bool:
        """Unless a busy machine begins one after the other."""
        threads = [threading.Thread(target=read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(GUARD)
        return bool(errors)

    eventually(overflows, lambda: "eight requests at once must overflow a queue of two")
    for error in errors:
        assert (error.status, error.reason) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")
        assert error.retry_after_seconds > 0
    eventually(engine.idle)


def test_only_holders_of_a_key_are_served(locked_engine):
    asked = GenerateRequest(input=[5], max_tokens=1)
    for wrong in (None, "", "another", KEY + "x"):
        with Client(locked_engine.target, api_key=wrong) as stranger, pytest.raises(RequestError) as raised:
            stranger.generate(asked)
        assert raised.value.status == "UNAUTHENTICATED"
        assert KEY not in raised.value.message
    with Client(locked_engine.target, api_key=KEY) as friend:
        assert friend.generate(asked).outputs
    assert KEY not in locked_engine.log
