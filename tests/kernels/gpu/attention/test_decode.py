"""The decode body and its merge against the plain reference, in the interpreter."""

import dataclasses

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quire.kernels.attention.attention import paged_attention_reference
from quire.kernels.attention.tile_schedule import KEYS_PER_TILE
from quire.kernels.attention.window import Chunk
from quire.kernels.gpu.attention.decode import decode
from quire.kernels.gpu.attention.tiles import decode_tiles
from quire.kernels.gpu.tuning.decode_trials import prepare, trials

TILE_SHAPE = (64, KEYS_PER_TILE)
TOLERANCE = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 1e-2, "atol": 1e-2},
}


def run(step, programs=1, **tiles):
    """out [T, H * D] by `programs` programs for each key-value head; what the body does not write stays NaN."""
    num_kv_heads, num_tokens, group, head_dim = step.query.shape
    out = torch.full((num_tokens, num_kv_heads * group * head_dim), torch.nan, dtype=step.query.dtype)
    schedule = step.batch.schedules[step.rule.window]
    tiles = {**decode_tiles(head_dim, step.query.dtype, step.keys.dtype), "programs": programs * num_kv_heads, **tiles}
    # the lengths on the host are those of a capture: another step's
    nothing = (0,) * step.batch.seq_lens.shape[0]
    batch = dataclasses.replace(step.batch, query_lens_host=nothing, seq_lens_host=nothing)
    scales = (step.sinks, step.key_scale, step.value_scale)
    decode(step.query, step.keys, step.values, batch, schedule, step.rule, *scales, out, tiles)
    return out


def check(step, programs=1, **tiles):
    """Rows of one token are the reference's, all others untouched. Returns the rows of one token."""
    out = run(step, programs, **tiles)
    chosen = torch.zeros(len(out), dtype=torch.bool)
    stop = 0
    for query_len in step.batch.query_lens_host:
        chosen[stop : stop + query_len] = query_len == 1
        stop += query_len
    wanted = paged_attention_reference(*step.arguments())[chosen]
    torch.testing.assert_close(out[chosen], wanted, **TOLERANCE[out.dtype])
    assert out[~chosen].isnan().all()
    return out[chosen]


one_token = st.tuples(st.just(1), st.integers(1, 200))
several = st.integers(2, 100).flatmap(lambda seq: st.tuples(st.integers(2, seq), st.just(seq)))
lengths = st.lists(st.one_of(one_token, one_token, one_token, several, st.just((0, 0))), min_size=1, max_size=6)


@settings(max_examples=60)
@given(
    lengths=lengths,
    programs=st.integers(1, 9),
    keys=st.sampled_from([16, 64, 128]),
    block_size=st.sampled_from([1, 16, 64, 256]),
    window=st.sampled_from([None, None, 1, 16, 63, 64, 65, Chunk(1), Chunk(64), Chunk(70)]),
    soft_cap=st.sampled_from([None, 2.0]),
    sinks=st.booleans(),
    heads=st.sampled_from([(1, 1), (1, 7), (2, 2)]),
)
@example([(1, 700), (1, 3)], 8, 64, 16, None, None, True, (1, 2))
@example([(1, 128), (1, 128), (1, 128)], 3, 64, 16, None, None, True, (1, 2))
@example([(0, 0), (4, 9), (1, 64), (0, 0), (1, 65), (0, 0)], 2, 64, 16, 64, None, True, (1, 2))
def test_rows_of_one_token_are_the_reference_s_however_they_are_shared_out(
    paged_step, lengths, programs, keys, block_size, window, soft_cap, sinks, heads
):
    num_kv_heads, group = heads
    options = {"block_size": block_size, "window": window, "soft_cap": soft_cap, "sinks": sinks}
    check(paged_step(lengths, TILE_SHAPE, num_kv_heads=num_kv_heads, group=group, **options), programs, keys=keys)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256, 512])
@pytest.mark.parametrize(
    ("query_type", "cache_type"),
    [
        (torch.float32, torch.float32),
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float8_e4m3fn),
        (torch.float16, torch.float8_e4m3fn),
        (torch.bfloat16, torch.float8_e4m3fn),
    ],
)
def test_every_head_size_and_type(paged_step, head_dim, query_type, cache_type):
    types = {"query_type": query_type, "cache_type": cache_type, "head_dim": head_dim}
    check(paged_step([(1, 140), (1, 9)], TILE_SHAPE, num_kv_heads=2, sinks=True, **types), programs=2)


def test_the_number_of_programs_changes_nothing_but_rounding(paged_step):
    step = paged_step([(1, 5), (1, 1500), (1, 64), (1, 63), (1, 65), (1, 1)], TILE_SHAPE, sinks=True)
    alone = check(step, programs=1)
    for programs in (2, 3, 14, 40):
        torch.testing.assert_close(check(step, programs), alone, rtol=1e-5, atol=1e-6)


def test_a_group_wider_than_a_matrix_instruction(paged_step):
    check(paged_step([(1, 70), (1, 7)], TILE_SHAPE, group=20), programs=2)


def test_a_step_without_rows_of_one_token_writes_nothing(paged_step):
    assert run(paged_step([(3, 9), (0, 0)], TILE_SHAPE), programs=3).isnan().all()
    assert run(paged_step([(0, 0), (0, 0)], TILE_SHAPE), programs=3).isnan().all()


@pytest.mark.parametrize("window", [70, Chunk(72)])
def test_blocks_behind_the_window_may_be_gone(paged_step, window):
    step = paged_step([(1, 200), (1, 90)], TILE_SHAPE, window=window)
    wanted = check(step, programs=2)
    tables = step.batch.block_tables.clone()
    for slot, seq_len in zip(step.batch.slots.tolist(), step.batch.seq_lens_host, strict=True):
        oldest = (seq_len - 1) // 72 * 72 if isinstance(window, Chunk) else seq_len - 70
        gone = oldest // 16
        for cache in (step.keys, step.values):
            cache[tables[slot, :gone].long()] = torch.nan
            cache[tables[slot, gone].long(), : oldest % 16] = torch.nan
        tables[slot, :gone] = 2**31 - 1
    spoiled = dataclasses.replace(step, batch=dataclasses.replace(step.batch, block_tables=tables))
    assert torch.equal(run(spoiled, programs=2)[:2], wanted)


def test_a_nan_a_row_may_see_shows_in_that_row_alone(paged_step):
    step = paged_step([(1, 200), (1, 200), (1, 40)], TILE_SHAPE)
    clean = run(step, programs=4)
    first = step.batch.block_tables[step.batch.slots[1], 3]
    step.keys[first, 0] = torch.nan
    out = run(step, programs=4)
    assert out[1].isnan().all()
    assert torch.equal(out[[0, 2]], clean[[0, 2]])


def test_large_scores_do_not_overflow(paged_step):
    step = paged_step([(1, 200), (1, 3)], TILE_SHAPE, sinks=True)
    for factor in (1e4, -1e4):
        check(dataclasses.replace(step, query=step.query * factor, sinks=step.sinks * factor), programs=3)


def test_trials_are_of_different_shapes_and_begin_with_the_default():
    found = list(trials())
    assert len({(trial.operation, trial.shape) for trial in found}) == len(found) == 6
    assert all(trial.candidates[0].keys() == candidate.keys() for trial in found for candidate in trial.candidates)


def test_a_trial_launches_the_body_with_the_candidate_s_tiles():
    candidates = next(trial for trial in trials() if trial.shape == "d64 bf16 bf16").candidates
    launch = prepare(64, torch.bfloat16, (70,), torch.device("cpu"))
    default = launch(candidates[0]).clone()
    assert default.isfinite().all()
    torch.testing.assert_close(launch(candidates[-1]), default, **TOLERANCE[torch.bfloat16])
