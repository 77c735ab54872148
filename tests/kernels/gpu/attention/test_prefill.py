"""The prefill bodies against the plain reference, in the interpreter: ragged rows, every option, poison all around."""

import dataclasses
import itertools
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from look_ahead import last_visible

from quire.kernels.attention.attention import AttentionRule, PagedBatch, paged_attention_reference
from quire.kernels.attention.tile_schedule import TileSchedule, fill_tile_schedule_reference, tokens_per_tile
from quire.kernels.attention.window import Chunk
from quire.kernels.gpu.attention.prefill import launch, prefill
from quire.kernels.gpu.attention.tiles import PrefillBody, select_prefill_body

# a row without a token divides by zero, and is not stored; poison makes slices that are all NaN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")

UNTOUCHED = 12345.0
TOLERANCE = {
    torch.float32: {"rtol": 1e-4, "atol": 2e-5},
    torch.float16: {"rtol": 4e-3, "atol": 3e-3},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
}


@dataclass
class Case:
    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    batch: PagedBatch
    rule: AttentionRule
    sinks: torch.Tensor | None = None
    key_scale: torch.Tensor | None = None
    value_scale: torch.Tensor | None = None

    def arguments(self):
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self))


def make_case(
    lengths,
    block_size,
    num_kv_heads=1,
    group=2,
    head_dim=64,
    rule=None,
    query_type=torch.float32,
    cache_type=None,
    sinks=False,
    seed=0,
):
    """A step whose row r runs lengths[r][0] tokens of a sequence of lengths[r][1]; a few tokens of padding follow.

    The cache beyond what rows own, and in a page what follows a row's last position, is NaN; unused table entries lead
    nowhere.
    """
    generator = torch.Generator().manual_seed(seed)
    cache_type = cache_type or query_type
    num_slots = len(lengths) + 2
    needed = [-(-seq // block_size) for _, seq in lengths]
    order = torch.randperm(sum(needed) + 3, generator=generator).tolist()
    shape = (len(order), block_size, num_kv_heads, head_dim)
    keys, values = torch.full((2, *shape), torch.nan)
    tables = torch.full((num_slots, max(needed) + 1), 2**31 - 1, dtype=torch.int32)
    slots = torch.randperm(num_slots, generator=generator)[: len(lengths)].int()
    for (_, seq_len), slot, count in zip(lengths, slots.tolist(), needed, strict=True):
        blocks = torch.tensor([order.pop() for _ in range(count)], dtype=torch.int64)
        tables[slot, :count] = blocks.int()
        place = torch.arange(seq_len)
        for cache in (keys, values):
            content = torch.randn((seq_len, num_kv_heads, head_dim), generator=generator)
            cache[blocks[place // block_size], place % block_size] = content
    query_lens, seq_lens = zip(*lengths, strict=True)
    query = torch.randn((num_kv_heads, sum(query_lens) + 3, group, head_dim), generator=generator)
    query[:, sum(query_lens) :] = torch.nan
    batch = PagedBatch(
        block_tables=tables,
        slots=slots,
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        query_starts=torch.tensor([0, *query_lens]).cumsum(0).int(),
        num_decodes=0,
        query_lens_host=query_lens,
        seq_lens_host=seq_lens,
        schedules={},
        last_visible=last_visible(lengths, seed),
    )
    eight_bits = cache_type == torch.float8_e4m3fn
    return Case(
        query.to(query_type),
        keys.to(cache_type),
        values.to(cache_type),
        batch,
        rule or AttentionRule(head_dim**-0.5),
        torch.randn(num_kv_heads * group, generator=generator) if sinks else None,
        torch.rand(num_kv_heads, generator=generator) + 0.5 if eight_bits else None,
        torch.rand(num_kv_heads, generator=generator) + 0.5 if eight_bits else None,
    )


def tile_schedule(case, tile_tokens):
    rows = case.batch.seq_lens.shape[0]
    schedule = TileSchedule(torch.empty(rows + 1, dtype=torch.int32), torch.empty(rows + 1, dtype=torch.int32))
    starts = case.batch.query_starts
    fill_tile_schedule_reference(case.batch.seq_lens, starts, case.rule.window, tile_tokens, 64, schedule)
    return schedule


def run(case, body=None):
    """out [T, H * D], every row of which that is not the prefill's own holds UNTOUCHED."""
    num_kv_heads, num_tokens, group, head_dim = case.query.shape
    out = torch.full((num_tokens, num_kv_heads * group * head_dim), UNTOUCHED).to(case.query.dtype)
    # the lengths on the host are those of a capture: another step's
    nothing = (0,) * case.batch.seq_lens.shape[0]
    batch = dataclasses.replace(case.batch, query_lens_host=nothing, seq_lens_host=nothing)
    query, keys, values, _, rule, *rest = case.arguments()
    arguments = (query, keys, values, batch, tile_schedule(case, tokens_per_tile(group)), rule, *rest, out)
    if body is None:
        prefill(*arguments)
    else:
        launch(body, *arguments)
    return out


def own_tokens(case):
    """bool [T]: tokens of rows that run several."""
    own = torch.zeros(case.query.shape[1], dtype=torch.bool)
    starts = case.batch.query_starts.tolist()
    for start, stop in itertools.pairwise(starts):
        own[start:stop] = stop - start > 1
    return own


def assert_matches_the_reference(case, body=None):
    out = run(case, body)
    query, *rest = case.arguments()
    expected = paged_attention_reference(query.float(), *rest)
    own = own_tokens(case)
    assert own.any()
    assert (out[~own] == torch.tensor(UNTOUCHED).to(out.dtype)).all(), "wrote rows that are not its own"
    torch.testing.assert_close(out[own].float(), expected[own], **TOLERANCE[query.dtype])


PROMPT_ROWS = st.integers(2, 150).flatmap(lambda seq: st.tuples(st.integers(2, seq), st.just(seq)))
ANY_ROW = st.one_of(st.just((0, 0)), st.integers(1, 40).map(lambda seq: (1, seq)), PROMPT_ROWS)
ROWS = st.tuples(st.lists(ANY_ROW, max_size=3), PROMPT_ROWS, st.lists(ANY_ROW, max_size=3)).map(
    lambda parts: [*parts[0], parts[1], *parts[2]]
)
ANY = {
    "lengths": ROWS,
    "heads": st.sampled_from([(1, 1), (2, 2), (1, 7), (3, 4)]),
    "soft_cap": st.sampled_from([None, 2.0]),
    "sinks": st.booleans(),
    "eight_bits": st.booleans(),
    "seed": st.integers(0, 1000),
}


def check_step(
    capability, lengths, block_size, heads, head_dim, window, soft_cap, sinks, query_type, eight_bits, seed, ahead=False
):
    """Returns the body that ran."""
    rule = AttentionRule(head_dim**-0.5, window, soft_cap, ahead)
    cache_type = torch.float8_e4m3fn if eight_bits else query_type
    case = make_case(lengths, block_size, *heads, head_dim, rule, query_type, cache_type, sinks, seed)
    body = select_prefill_body(capability, block_size, head_dim, query_type, cache_type, window)
    assert_matches_the_reference(case, body)
    return body


@settings(max_examples=30)
@given(
    **ANY,
    block_size=st.sampled_from([1, 2, 16, 64, 256]),
    head_dim=st.sampled_from([64, 80, 96, 128]),
    window=st.sampled_from([None, 1, 5, 64, 70, Chunk(1), Chunk(30), Chunk(64)]),
    query_type=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    ahead=st.booleans(),
)
def test_the_plain_body_follows_the_reference_on_any_step(**step):
    assert not check_step(80, **step).specialized


@settings(max_examples=30)
@given(
    **ANY,
    block_size=st.sampled_from([64, 128, 256]),
    head_dim=st.sampled_from([64, 128]),
    window=st.sampled_from([None, 64, 65, 100, 130]),
    query_type=st.sampled_from([torch.bfloat16, torch.float16]),
)
def test_the_specialized_body_follows_the_reference_on_any_step(**step):
    assert check_step(90, **step).specialized


@pytest.mark.parametrize(
    ("lengths", "block_size", "window"),
    [([(3, 130)], 128, 128), ([(64, 64), (2, 129)], 64, 64), ([(64, 64)], 64, None)],
)
def test_rows_and_windows_may_end_where_a_page_does(lengths, block_size, window):
    case = make_case(lengths, block_size, rule=AttentionRule(0.125, window), query_type=torch.bfloat16)
    assert_matches_the_reference(case)


@pytest.mark.parametrize("block_size", [16, 128])
@pytest.mark.parametrize("query_len", [2, 32, 33, 64, 65])
def test_a_chunk_extends_a_long_context(block_size, query_len):
    case = make_case([(query_len, 700), (2, 513)], block_size, 1, 4, 64, query_type=torch.bfloat16)
    assert_matches_the_reference(case)


@pytest.mark.parametrize("rows", [16, 32, 64, 128])
@pytest.mark.parametrize("group", [1, 3, 7, 128])
def test_a_tile_may_be_split_among_programs(rows, group):
    body = PrefillBody(False, rows, 32, torch.float32, 4, 2)
    case = make_case([(1, 9), (128 // group + 3, 150), (3, 3)], 16, 1, group, 64, AttentionRule(0.125, 40))
    assert_matches_the_reference(case, body)


@pytest.mark.parametrize("block_size", [16, 64])
def test_each_head_has_its_own_scales_and_sinks(block_size):
    types = {"query_type": torch.bfloat16, "cache_type": torch.float8_e4m3fn}
    assert_matches_the_reference(make_case([(20, 90), (1, 4)], block_size, 3, 2, 64, sinks=True, **types))


@pytest.mark.parametrize("query_type", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [256, 512])
def test_the_widest_heads(query_type, head_dim):
    assert_matches_the_reference(make_case([(40, 90), (1, 5), (70, 70)], 16, 1, 2, head_dim, query_type=query_type))


@pytest.mark.parametrize("window", [None, 70])
def test_an_item_may_span_tiles_of_queries_and_of_keys(window):
    case = make_case([(200, 230), (1, 5), (130, 130)], 16, 1, 2, 64, AttentionRule(0.125, window, looks_ahead=True))
    ends = torch.tensor([229] * 200 + [4] + [129] * 130, dtype=torch.int32)
    case.batch = dataclasses.replace(case.batch, last_visible=ends)
    assert_matches_the_reference(case)


def test_layers_that_look_ahead_or_see_chunks_run_the_plain_body(monkeypatch):
    monkeypatch.setattr("quire.kernels.gpu.attention.prefill.prefill_specialized", None)
    monkeypatch.setattr("quire.kernels.gpu.prefill_switch.is_trusted", lambda: True)
    for rule in (AttentionRule(0.125, Chunk(64)), AttentionRule(0.125, 64, looks_ahead=True)):
        case = make_case([(40, 90), (70, 70)], 64, rule=rule, query_type=torch.bfloat16)
        assert_matches_the_reference(case)


@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize("window", [70, Chunk(72)])
def test_what_only_positions_behind_the_window_held_may_be_nan_by_now(block_size, window):
    """A block wholly behind the window of every token may belong to another row already."""
    case = make_case([(3, 300)], block_size, 1, 2, 64, AttentionRule(0.125, window), torch.bfloat16)
    oldest = 288 if isinstance(window, Chunk) else 300 - 3 + 1 - 70
    table = case.batch.block_tables[case.batch.slots[0]].long()
    for position in range(oldest):
        block = table[position // block_size]
        case.keys[block, position % block_size] = torch.nan
        case.values[block, position % block_size] = torch.nan
    case.batch.block_tables[case.batch.slots[0], : oldest // block_size] = 2**31 - 1
    assert_matches_the_reference(case)


@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize("poisoned", ["keys", "values", "query"])
def test_a_nan_that_a_row_sees_shows_in_it_and_in_no_other(block_size, poisoned):
    case = make_case([(20, 90), (1, 4), (30, 80)], block_size, 1, 2, 64, query_type=torch.bfloat16)
    clean = run(case)
    if poisoned == "query":
        case.query[:, 5] = torch.nan
    else:
        getattr(case, poisoned)[case.batch.block_tables[case.batch.slots[0], 0], 0] = torch.nan
    out = run(case)
    assert out[5].isnan().all()
    assert torch.equal(out[20:], clean[20:])


@pytest.mark.parametrize("block_size", [16, 64])
def test_very_large_scores_neither_overflow_nor_lose_the_likeliest(block_size):
    for soft_cap in (None, 30.0):
        rule = AttentionRule(100.0, None, soft_cap)
        assert_matches_the_reference(make_case([(30, 70)], block_size, 1, 2, 64, rule, torch.float16))


@pytest.mark.parametrize("block_size", [16, 64])
def test_a_sink_of_minus_infinity_is_none(block_size):
    """Also for a token that sees nothing of the first tile of keys."""
    case = make_case([(64, 200)], block_size, rule=AttentionRule(0.125, 64), query_type=torch.bfloat16)
    plain = run(case)
    case.sinks = torch.full((2,), -torch.inf)
    assert torch.equal(run(case), plain)


@pytest.mark.parametrize("block_size", [16, 64])
def test_a_row_gives_the_same_bits_whatever_runs_beside_it(block_size):
    lengths = [(1, 9), (40, 90), (7, 7)]
    case = make_case(lengths, block_size, 1, 2, 64, query_type=torch.bfloat16)
    alone = dataclasses.replace(
        case,
        query=case.query[:, 1:41].contiguous(),
        batch=dataclasses.replace(
            case.batch,
            slots=case.batch.slots[1:2],
            seq_lens=case.batch.seq_lens[1:2],
            query_starts=torch.tensor([0, 40], dtype=torch.int32),
            query_lens_host=(40,),
            seq_lens_host=(90,),
        ),
    )
    assert torch.equal(run(alone), run(case)[1:41])


@pytest.mark.parametrize("block_size", [16, 64])
def test_a_step_without_prompts_or_without_anything_writes_nothing(block_size):
    case = make_case([(1, 9), (0, 0), (1, 70)], block_size, 1, 2, 64, query_type=torch.bfloat16)
    assert (run(case) == torch.tensor(UNTOUCHED).bfloat16()).all()
    empty = dataclasses.replace(case, query=case.query[:, :0])
    assert run(empty).shape == (0, 128)


def test_many_rows_find_their_tiles():
    lengths = [(0, 0)] * 530
    for row in (1, 300, 511, 512, 528):
        lengths[row] = (3 + row % 5, 9)
        lengths[row - 1] = (1, 4)
    assert_matches_the_reference(make_case(lengths, 16, 1, 64, 64))


def test_a_caches_type_may_differ_from_the_queries():
    assert_matches_the_reference(make_case([(30, 70)], 16, query_type=torch.bfloat16, cache_type=torch.float16))
    assert_matches_the_reference(make_case([(30, 70)], 64, query_type=torch.float32, cache_type=torch.bfloat16))
