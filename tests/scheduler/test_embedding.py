"""Requests of an embedding model: whole prompts, one vector, and everything else as for all."""

import msgspec
import pytest

from quire.proto.messages.heads import HeadFacts
from quire.proto.messages.requests import ModelFacts
from quire.proto.transport.wire import unpack
from quire.scheduler.errors import ResultError

FACTS = ModelFacts(
    max_model_len=100,
    vocab_size=1000,
    eos_token_ids=(2,),
    num_blocks=200,
    block_sizes=(4,),
    kv_bytes=0,
    weight_bytes=0,
    device="none",
    dtype="none",
    architecture="BertModel",
    revision="r1",
    task="embed",
    embedding_size=3,
    whole_prompts=True,
    shares_prefixes=False,
)
DECODER = msgspec.structs.replace(FACTS, architecture="Qwen3Model", whole_prompts=False, shares_prefixes=True)


@pytest.fixture
def encoder(engine):
    return engine(facts=FACTS)


def test_each_prompt_ends_with_its_vector_and_without_a_token(encoder):
    for number, length in ((1, 5), (2, 30), (3, 1)):
        encoder.submit(number, length, task="embed")
    encoder.settle()
    assert encoder.vectors == {1: [10, 5, 0], 2: [10, 30, 0], 3: [10, 1, 0]}
    for number, length in ((1, 5), (2, 30), (3, 1)):
        finish = encoder.finishes[number, 0]
        assert (finish.reason, finish.num_tokens, finish.stop_token_id) == ("stop", 0, -1)
        assert (finish.usage.prompt_tokens, finish.usage.completion_tokens) == (length, 0)
    assert not encoder.tokens
    assert encoder.free_blocks == 200


def test_a_prompt_may_fill_the_context(engine):
    big = engine(facts=FACTS, max_num_batched_tokens=100)
    big.submit(1, 100, task="embed")
    big.settle()
    assert big.vectors == {1: [10, 100, 0]}
    big.submit(2, 101, task="embed")
    finish = big.finishes[2, 0]
    assert (finish.reason, finish.error) == ("rejected", "CONTEXT_LENGTH_EXCEEDED")
    assert "101 tokens are more than the context length 100" in finish.message


def test_a_whole_prompt_waits_for_a_step_that_holds_it(encoder):
    encoder.submit(1, 40, task="embed")
    encoder.submit(2, 40, task="embed")
    first, second = encoder.plan(), encoder.plan()
    assert [row[1:] for row in first.rows] == [row[1:] for row in second.rows] == [(40, 1)]
    encoder.settle()
    assert len(encoder.vectors) == 2


def test_a_whole_prompt_longer_than_any_step_is_refused_with_the_numbers_and_the_remedy(encoder):
    encoder.submit(1, 65, task="embed")
    finish = encoder.finishes[1, 0]
    assert finish.error == "EXCEEDS_CAPACITY"
    assert "65 tokens are more than one step takes, 64" in finish.message
    assert "larger max_num_batched_tokens" in finish.message


def test_a_decoders_prompt_comes_in_chunks_and_shares_what_is_cached(engine):
    decoder = engine(facts=DECODER)
    decoder.submit(1, 90, task="embed")
    decoder.settle()
    assert [row[1] for plan in decoder.sent for row in plan.rows] == [64, 26]
    decoder.submit(2, 90, task="embed")
    decoder.settle()
    assert decoder.finishes[2, 0].usage.cached_tokens == 88
    assert decoder.vectors[2] == [10, 90, 0]


@pytest.mark.parametrize("facts", [FACTS, msgspec.structs.replace(DECODER, shares_prefixes=False)])
def test_where_every_hidden_state_is_needed_no_prefix_is_shared(facts, engine):
    one = engine(facts=facts)
    for number in (1, 2):
        one.submit(number, 60, task="embed")
        one.settle()
    assert one.finishes[2, 0].usage.cached_tokens == 0


def test_what_only_sampling_needs_does_not_matter(encoder):
    encoder.submit(1, 40, task="embed", max_tokens=10**9, prompt_logprobs=3, stop_token_ids=(999_999,))
    encoder.settle()
    assert encoder.reason(1) == "stop"


def test_one_prompt_has_one_vector(encoder):
    encoder.submit(1, 4, task="embed", n=2)
    assert {(finish.error, finish.field) for finish in encoder.finishes.values()} == {("INVALID_PARAMETER", "n")}


def test_a_model_does_its_own_task_only(encoder, engine):
    encoder.submit(1, 4)
    assert encoder.finishes[1, 0].error == "UNSUPPORTED"
    assert "ask it for embeddings" in encoder.finishes[1, 0].message
    generator = engine()
    for number, task in ((1, "embed"), (2, "score")):
        generator.submit(number, 4, task=task)
        assert generator.finishes[number, 0].error == "UNSUPPORTED"
        assert f"--task {task}" in generator.finishes[number, 0].message


def test_a_head_answers_with_a_number_for_each_label_and_sees_where_a_second_text_begins(engine):
    head = HeadFacts(("no", "yes"), "softmax")
    classifier = engine(facts=msgspec.structs.replace(FACTS, task="classify", embedding_size=0, head=head))
    classifier.submit(1, 8, task="classify", second_text=5)
    classifier.submit(2, 4, task="classify")
    plan = classifier.plan()
    assert [(len(unpack(admit.tokens)), admit.second_text) for admit in plan.message.admits] == [(8, 5), (4, 0)]
    classifier.settle()
    assert classifier.vectors == {1: [10, 8], 2: [10, 4]}
    classifier.start()  # a new group is told again
    classifier.submit(3, 8, task="classify", second_text=7)
    assert [admit.second_text for admit in classifier.plan().message.admits] == [7]


@pytest.mark.parametrize("second_text", [-1, 8])
def test_a_second_text_begins_within_the_prompt(second_text, encoder):
    encoder.submit(1, 8, task="embed", second_text=second_text)
    finish = encoder.finishes[1, 0]
    assert (finish.error, finish.field) == ("INVALID_PARAMETER", "second_text")


def test_after_the_workers_death_a_prompt_is_run_again(encoder):
    encoder.submit(1, 40, task="embed")
    encoder.plan()
    encoder.start()
    encoder.settle()
    assert encoder.vectors == {1: [10, 40, 0]}
    assert encoder.finishes[1, 0].usage.num_restarts == 1


def test_an_aborted_prompt_has_no_vector(encoder):
    encoder.submit(1, 40, task="embed")
    encoder.submit(2, 8, task="embed")
    encoder.plan()
    encoder.abort(1)
    encoder.settle()
    assert encoder.vectors == {2: [10, 8, 0]}
    assert encoder.reason(1) == "abort"
    assert encoder.free_blocks == 200


def test_a_bad_vector_ends_its_own_prompt_only(encoder):
    for number in (1, 2):
        encoder.submit(number, 8, task="embed")
    encoder.plan()
    encoder.answer(bad_rows=(0,))
    assert (encoder.finishes[1, 0].error, encoder.reason(2)) == ("NUMERICAL", "stop")
    assert list(encoder.vectors) == [2]


@pytest.mark.parametrize("vectors", [(), (b"\0" * 8,), (b"\0" * 12, b"\0" * 12)])
def test_vectors_that_do_not_fit_the_plan_replace_the_group(vectors, encoder):
    encoder.submit(1, 8, task="embed")
    encoder.plan()
    with pytest.raises(ResultError, match=f"{len(vectors)} vectors, not 1 of 3 numbers"):
        encoder.answer(vectors=vectors)


BY_TOKEN = msgspec.structs.replace(
    DECODER, task="classify", embedding_size=0, head=HeadFacts(("no", "yes"), "softmax", by_token=True),
    shares_prefixes=False,
)  # fmt: skip


def doubled(ids):
    return [number for one in ids for number in (one, one)]


@pytest.mark.parametrize("loss", ["none", "worker"])
def test_where_each_token_has_a_vector_all_come_once_and_in_order(loss, engine):
    tokens = {1: list(range(10, 100)), 2: list(range(200, 290)), 3: [7]}
    e = engine(facts=BY_TOKEN)
    for number, ids in tokens.items():
        e.submit(number, ids, task="classify")
    if loss == "worker":
        e.step()  # the first chunk of a prompt is computed, and the second one's result never comes
        e.start()
    e.settle()
    assert e.vectors == {number: doubled(ids) for number, ids in tokens.items()}
    assert max(row[1] for plan in e.sent for row in plan.rows) < 90
    assert {finish.reason for finish in e.finishes.values()} == {"stop"}
    assert (e.core.counters.num_restarts > 0) == (loss == "worker")


def test_a_bad_chunk_ends_its_prompt(engine):
    e = engine(facts=BY_TOKEN)
    e.submit(1, 90, task="classify")
    e.plan()
    e.answer(bad_rows=(0,))
    assert e.finishes[1, 0].error == "NUMERICAL"
    e.settle()
    assert e.vectors == {}


def test_vectors_of_other_counts_of_tokens_replace_the_group(engine):
    e = engine(facts=BY_TOKEN)
    e.submit(1, 8, task="classify")
    e.plan()
    with pytest.raises(ResultError, match="1 vectors, not 1 of 2 numbers for each token"):
        e.answer(vectors=(b"\0" * 8,))
