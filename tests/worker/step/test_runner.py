"""A runner on the tiny checkpoint agrees with transformers, however the work is cut into steps and blocks."""

import numpy as np
import pytest
import torch

from quire.proto.messages.params import SamplingParams
from quire.proto.transport.wire import ints
from quire.worker.tables.slot_table import PlanError

PROMPTS = [np.random.default_rng(n).integers(1, 320, length).tolist() for n, length in enumerate((5, 19, 33, 1))]
BLOCK = 8


def expected(reference, prompt, count):
    out = reference.generate(
        torch.tensor([prompt]),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()


def test_greedy_tokens_of_a_mixed_batch_equal_transformers(driver, reference):
    for slot, prompt in enumerate(PROMPTS):
        driver.scribe.admit(slot, prompt)
    drawn = {slot: [] for slot in range(4)}
    order = sorted(range(4), key=lambda slot: len(PROMPTS[slot]) > 1)
    for step in range(12):
        rows = [(slot, len(PROMPTS[slot]) if step == 0 else 1) for slot in (order if step == 0 else range(4))]
        slots = order if step == 0 else range(4)
        for slot, token in zip(slots, driver.draw(rows), strict=True):
            drawn[slot].append(token)
    for slot, prompt in enumerate(PROMPTS):
        assert drawn[slot] == expected(reference, prompt, 12)


def test_a_chunked_prompt_beside_decodes_draws_what_the_whole_prompt_draws(driver, reference):
    long, short = PROMPTS[2], PROMPTS[0]
    driver.scribe.admit(0, short)
    neighbour = driver.draw([(0, len(short))])
    driver.scribe.admit(1, long)
    for chunk in (1, 7, 12, 2):
        neighbour += driver.draw([(0, 1), (1, chunk)])
    first, own = driver.draw([(0, 1), (1, len(long) - 22)])
    neighbour.append(first)
    drawn = [own]
    while len(drawn) < 6:
        drawn += driver.draw([(1, 1)])
    assert drawn == expected(reference, long, 6)
    assert neighbour == expected(reference, short, 6)


def test_a_prefix_in_shared_blocks_is_not_computed_again(driver, reference):
    prompt = PROMPTS[2]
    assert driver.generate(0, prompt, 3) == expected(reference, prompt, 3)
    shared = driver.scribe.tables[0][:3]
    other = [*prompt[: 3 * BLOCK], 7, 8, 9, 10]
    blocks = shared + driver.scribe.blocks(1)
    assert driver.generate(1, other, 5, computed=3 * BLOCK, blocks=blocks) == expected(reference, other, 5)


def test_a_fork_by_copied_block_goes_its_own_way(driver, reference):
    prompt = PROMPTS[1]
    first = driver.generate(0, prompt, 2)
    shared = driver.scribe.tables[0]
    own = driver.scribe.blocks(1)[0]
    driver.scribe.copy(shared[2], own)
    branch = [*prompt, 300]
    blocks = [*shared[:2], own]
    driver.scribe.admit(1, branch, num_prompt=len(prompt), computed=len(prompt), blocks=blocks)
    a, b = [], []
    for _ in range(4):
        one, two = driver.draw([(0, 1), (1, 1)])
        a.append(one)
        b.append(two)
    assert first + a == expected(reference, prompt, 6)
    assert b == expected(reference, branch, 4)


def test_a_slot_reused_knows_nothing_of_its_former_tenant(driver, reference):
    hostile = SamplingParams(
        temperature=2.0, repetition_penalty=50.0, logit_bias=((3, 100.0),), bad_words=((5,), (7, 8)), logprobs=5
    )
    driver.generate(3, PROMPTS[2], 9, hostile)
    driver.scribe.release(3)
    assert driver.generate(3, PROMPTS[0], 9) == expected(reference, PROMPTS[0], 9)


def test_what_a_reused_block_held_before_never_reaches_the_next_sequence(driver, reference):
    cache = driver.runner._cache
    for layer in cache.layers:
        layer.keys.fill_(torch.nan)
        layer.values.fill_(torch.nan)
    for slot, prompt in enumerate(PROMPTS[:3]):
        driver.scribe.admit(slot, prompt)
    drawn = [driver.draw([(0, 5), (1, 10), (2, 33)]), driver.draw([(0, 1), (2, 1), (1, 9)])]
    drawn.append(driver.draw([(0, 1), (1, 1), (2, 1)]))
    wanted = [expected(reference, prompt, 3) for prompt in PROMPTS[:3]]
    assert drawn[0] == [wanted[0][0], wanted[2][0]]
    assert drawn[1] == [wanted[0][1], wanted[2][1], wanted[1][0]]
    assert drawn[2] == [wanted[0][2], wanted[1][1], wanted[2][2]]


def test_a_sequence_readmitted_after_preemption_draws_the_same_random_tokens(driver):
    params = SamplingParams(temperature=1.3, top_p=0.95, seed=99, presence_penalty=0.5, frequency_penalty=0.2)
    whole = driver.generate(0, PROMPTS[0], 12, params)
    emitted = whole[:5]
    again = driver.generate(1, PROMPTS[0] + emitted, 7, params, num_prompt=len(PROMPTS[0]))
    assert again == whole[5:]
    assert driver.generate(2, PROMPTS[0], 12, params, output=1) != whole


def test_logprobs_are_log_softmax_of_the_raw_logits(driver, reference):
    prompt = PROMPTS[1]
    asked = SamplingParams(
        temperature=0.7, seed=3, repetition_penalty=2.0, logprobs=4, logprob_token_ids=(17, 230), prompt_logprobs=2
    )
    driver.scribe.admit(0, prompt, asked)
    entries, drawn = [], []
    for rows in ([(0, 9)], [(0, 10)], [(0, 1)], [(0, 1)]):
        result = driver.run(rows)
        drawn += np.frombuffer(result.token_ids, dtype=np.int32).tolist()
        entries += [
            (part.prompt, part.first_position + i, entry)
            for part in result.logprobs
            for i, entry in enumerate(part.entries)
        ]
    tokens = prompt + drawn
    with torch.no_grad():
        table = reference(torch.tensor([tokens])).logits[0].log_softmax(-1)
    assert [(prompt_part, position) for prompt_part, position, _ in entries] == [
        (position < len(prompt), position) for position in range(1, len(tokens))
    ]
    for is_prompt, position, entry in entries:
        row = table[position - 1]
        assert entry.token_id == tokens[position]
        assert entry.logprob == pytest.approx(row[entry.token_id].item(), abs=1e-4)
        assert entry.rank == 1 + int((row > row[entry.token_id]).sum())
        top = row.topk(2 if is_prompt else 4)
        assert entry.top_ids == tuple(top.indices.tolist())
        assert entry.top_logprobs == pytest.approx(top.values.tolist(), abs=1e-4)
        assert entry.named_ids == (17, 230)
        assert entry.named_logprobs == pytest.approx([row[i].item() for i in entry.named_ids], abs=1e-4)


def test_a_plan_launched_before_the_last_one_is_collected_finds_its_tokens_on_the_device(driver, reference):
    driver.scribe.admit(0, PROMPTS[0])
    plans = [driver.scribe.plan([(0, len(PROMPTS[0]))])[0], *(driver.scribe.plan([(0, 1)])[0] for _ in range(3))]
    launched = [driver.runner.launch(plan) for plan in plans]
    drawn = [int.from_bytes(driver.runner.collect(step).token_ids, "little") for step in launched]
    assert drawn == expected(reference, PROMPTS[0], 4)


def test_an_empty_plan_is_a_step(driver):
    result = driver.run([])
    assert result.token_ids == b""
    assert result.bad_rows == ()


def test_features_that_are_not_loaded_are_refused(driver):
    driver.scribe.admit(0, PROMPTS[0], adapter=1)
    with pytest.raises(PlanError, match="adapter 1 is not loaded"):
        driver.run([(0, 5)])


def test_drafts_are_refused(driver):
    driver.scribe.admit(0, PROMPTS[0])
    with pytest.raises(PlanError, match="no speculation"):
        driver.run([(0, 5)], num_tokens=ints([6]), num_draft=ints([1]))


def test_a_bad_row_is_named_in_the_result_and_its_neighbours_are_right(toy):
    table = torch.randn(50, 50, generator=torch.Generator().manual_seed(0))
    likeliest = table.argmax(dim=1).tolist()
    table[13, 4] = torch.nan
    _, driver = toy(table)
    asking = SamplingParams(temperature=0.0, logprobs=1, prompt_logprobs=0)
    driver.scribe.admit(0, [20])
    driver.scribe.admit(1, [13], SamplingParams(temperature=1.0, top_p=0.5, logprobs=1))
    driver.scribe.admit(2, [21], asking)
    driver.scribe.admit(3, [13, 22], asking)
    result = driver.run([(0, 1), (1, 1), (2, 1), (3, 2)])
    tokens = np.frombuffer(result.token_ids, dtype=np.int32).tolist()
    assert result.bad_rows == (1, 3), "row 3 drew from finite logits, but its prompt's were not"
    assert (tokens[0], tokens[2], tokens[3]) == (likeliest[20], likeliest[21], likeliest[22])
    assert {part.row for part in result.logprobs if not part.prompt} <= {2, 3}
    assert 1 not in {part.row for part in result.logprobs}


def test_prompt_logprobs_of_a_long_chunk_never_need_more_than_64_rows_of_logits(toy):
    model, driver = toy(torch.randn(50, 50))
    prompt = np.random.default_rng(0).integers(0, 50, 300).tolist()
    driver.scribe.admit(0, prompt, SamplingParams(temperature=0.0, prompt_logprobs=1))
    result = driver.run([(0, 300)])
    assert max(model.asked) <= 64
    (part,) = result.logprobs
    assert (part.prompt, part.first_position, len(part.entries)) == (True, 1, 299)
    assert [entry.token_id for entry in part.entries] == prompt[1:]


@pytest.mark.parametrize(
    ("copies", "complaint"),
    [
        ([0, 200], "outside"),
        ([-1, 3], "outside"),
        ([1, 3, 2, 3], "twice"),
        ([1, 3, 3, 4], "both read and"),
        ([1], "multiple of 8"),
    ],
)
def test_impossible_copies_are_refused(toy, copies, complaint):
    _, driver = toy(torch.randn(50, 50))
    with pytest.raises(PlanError, match=complaint):
        driver.run([], copies=ints(copies))


def test_steady_decoding_keeps_every_table_where_it_is(toy):
    _, driver = toy(torch.randn(50, 50))
    driver.generate(0, [1, 2, 3], 5, SamplingParams(temperature=1.0, top_k=3, presence_penalty=1.0))
    slots = driver.runner._slot_table
    tables = (slots.tokens, slots.known, *slots.block_tables, slots.sampling.floats, slots.sampling.ints)
    before = [table.data_ptr() for table in tables]
    for _ in range(50):
        driver.draw([(0, 1)])
    tables = (slots.tokens, slots.known, *slots.block_tables, slots.sampling.floats, slots.sampling.ints)
    assert [table.data_ptr() for table in tables] == before
