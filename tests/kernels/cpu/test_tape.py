"""What a tape takes down is run again on what its buffers hold; what it could not run is refused."""

import pytest
import torch
from coded_layers import DTYPES, FORMS, GROUPS, coded_layer, draw_experts, random, same

from quire.kernels.attention.attention import AttentionRule, paged_attention
from quire.kernels.cpu.arena import Arena
from quire.kernels.cpu.tape import NotNativeError, record
from quire.kernels.experts.coded import coded_experts
from quire.kernels.experts.experts import experts
from quire.kernels.experts.pack import pack_experts
from quire.kernels.experts.route import Routing, route
from quire.kernels.linear.activation import gated_activation
from quire.kernels.linear.embed_groups import embed_groups
from quire.kernels.linear.linear import linear, norm_linear
from quire.kernels.linear.norm import rms_norm
from quire.kernels.linear.pack import pack

pytestmark = pytest.mark.sampled(40)

TOKENS, WIDTH = 24, 32


@pytest.fixture
def layer():
    """A step [TOKENS, WIDTH] -> [TOKENS, WIDTH] of any number of layers."""
    generator = torch.Generator().manual_seed(7)
    gain = torch.randn(WIDTH, generator=generator)
    up = pack(torch.randn(64, WIDTH, generator=generator))
    down = pack(torch.randn(WIDTH, WIDTH, generator=generator))

    def run(x, times):
        residual = None
        for _ in range(times):
            gated, residual = norm_linear(x, residual, gain, 1e-5, up, None, "silu")
            x = linear(gated, down, None)
        return x

    return run


@torch.inference_mode()
def test_a_tape_computes_nothing_until_it_is_replayed_and_then_on_what_its_buffers_hold(layer):
    x = torch.full((TOKENS, WIDTH), torch.nan)
    tape = record(lambda: layer(x, 3), TOKENS, 1)
    assert len(tape) == 6
    for seed in range(3):
        x.normal_(generator=torch.Generator().manual_seed(seed))
        for count in (TOKENS, 1, 7):
            expected = layer(x[:count], 3)
            assert torch.equal(tape.replay(count, 1), expected)


@torch.inference_mode()
def test_an_operation_of_torch_is_refused_by_name_and_recording_ends(layer):
    x = torch.randn(TOKENS, WIDTH)
    with pytest.raises(NotNativeError, match="aten::add is an operation of torch"):
        record(lambda: layer(x, 1) + x, TOKENS, 1)
    assert torch.isfinite(rms_norm(x, torch.ones(WIDTH), 1e-5)).all(), "calls are made again"


@torch.inference_mode()
def test_a_call_over_another_number_of_tokens_is_refused():
    x = torch.randn(TOKENS, WIDTH)
    with pytest.raises(NotNativeError, match=f"quire_gated_activation: NumTokens is {TOKENS - 1}, and {TOKENS}"):
        record(lambda: gated_activation(x[1:], "silu"), TOKENS, 1)


@pytest.mark.parametrize("count", [2, 5])
@torch.inference_mode()
def test_threads_together_make_of_a_tape_what_one_makes_alone(make_step, threads, count):
    """Five: more than there are cores, so that some lose theirs in the middle of a loop."""
    lengths = [(1, 700), (1, 1100), (1, 300), (20, 600)]
    step = make_step(lengths, 16, 2, 2, 64, torch.float32, torch.float32, 3)
    queries, num_tokens, num_rows = step[0], sum(query for query, _ in lengths), len(step[3].slots)
    generator = torch.Generator().manual_seed(5)
    gain = torch.randn(256, generator=generator)
    up = pack(torch.randn(1024, 256, generator=generator))
    down = pack(torch.randn(256, 512, generator=generator))

    def run():
        x, residual = paged_attention(*step, AttentionRule(0.125)), None
        for _ in range(6):
            gated, residual = norm_linear(x, residual, gain, 1e-5, up, None, "silu")
            x = linear(gated, down, None)
        return x

    threads(1)
    given = [torch.randn(queries.shape, generator=generator) for _ in range(2)]
    alone = [(queries.copy_(one), run())[1] for one in given]
    threads(count)
    tape = record(run, num_tokens, num_rows)
    for turn in range(100):
        queries.copy_(given[turn % 2])
        assert torch.equal(tape.replay(num_tokens, num_rows), alone[turn % 2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_threads_that_come_late_to_a_layer_find_its_loops_as_they_were(threads, dtype):
    """Four threads on fewer cores lose theirs in the middle of any loop, and the others sort the next layer's tokens
    into the same memory meanwhile. Each layer sends them elsewhere: all to one expert, or to many."""
    tokens, count, k, hidden, inner, layers = 24, 16, 2, 64, 32, 24
    x = random(tokens, hidden, dtype=dtype)
    gate_up, down = random(count, 2 * inner, hidden, dtype=dtype), random(count, hidden, inner, dtype=dtype)
    packed, gain = pack_experts(gate_up / hidden**0.5, down / inner**0.5), torch.ones(hidden, dtype=dtype)
    slots = torch.zeros(tokens, dtype=torch.int64)
    logits = torch.empty(layers, tokens, count)
    generator = torch.Generator().manual_seed(2)

    def run(rows):
        out = x[:rows]
        for layer in range(layers):
            ids, weights = route(logits[layer, :rows], None, slots[:rows], Routing(count, k, renormalize=True))
            out = rms_norm(experts(out, ids, weights, *packed, "silu", 0), gain, 1e-5)
        return out

    def send():
        logits.normal_(generator=generator)
        logits[::2, :, torch.randint(count, (1,), generator=generator)] += 20  # one takes all of every other layer
        logits[1::4, :, 3] += 20
        slots.copy_(torch.randint(-1, 4, (tokens,), generator=generator))

    send()
    threads(4)
    tape = record(lambda: run(tokens), tokens, 1)
    for turn in range(200):
        send()
        rows = (tokens, 1, 7)[turn % 3]
        replayed = tape.replay(rows, 1).clone()
        if turn % 10 < 3:
            threads(1)
            assert torch.equal(replayed, run(rows))
            assert replayed.isfinite().all()
            threads(4)


@pytest.mark.parametrize("form", FORMS)
@torch.inference_mode()
def test_a_tape_of_coded_experts_serves_every_step_that_is_no_larger(threads, form):
    x, ids, weights, gate_up, down = draw_experts(form, 9, 2, torch.bfloat16)
    threads(2)
    tape = record(lambda: coded_experts(x, ids, weights, gate_up, down, "silu", 0), 9, 1)
    for rows in (9, 1, 4):
        wanted = coded_experts(x[:rows], ids[:rows], weights[:rows], gate_up, down, "silu", 0)
        assert torch.equal(tape.replay(rows, 1), wanted)


def test_an_arena_gives_out_a_block_again_once_no_view_of_it_is_held():
    arena = Arena()
    first = arena.empty((4, 8), torch.float32)
    address, view = first.data_ptr(), first[1:].view(-1)
    del first
    assert arena.empty((4, 8), torch.float32).data_ptr() != address
    del view
    small = arena.empty((3,), torch.bfloat16)
    assert small.dtype is torch.bfloat16
    assert address % 64 == 0


@torch.inference_mode()
def test_layers_take_turns_in_the_memory_of_a_tape(layer):
    x = torch.randn(TOKENS, WIDTH)
    assert record(lambda: layer(x, 3), TOKENS, 1).num_bytes == record(lambda: layer(x, 12), TOKENS, 1).num_bytes


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_a_tape_gives_what_calls_give_with_every_form_of_weights(form, dtype):
    up, down = coded_layer(form, 256, 128), coded_layer(form, 128, 128, 7)
    gain, x = random(128, dtype=dtype), torch.full((24, 128), torch.nan, dtype=dtype)

    def step(x):
        gated, total = up.normed(x, None, gain, gate="silu")
        return down.normed(down(gated), total, gain)[0]

    tape = record(lambda: step(x), 24, 1)
    assert len(tape) == 3
    for seed, count in enumerate((24, 1, 7)):
        x.copy_(random(24, 128, seed=seed, dtype=dtype))
        assert same(tape.replay(count, 1), step(x[:count]))


@pytest.mark.parametrize("form", [form for form in GROUPS if " zeros " not in form])
@torch.inference_mode()
def test_a_tape_looks_up_what_calls_do(form):
    layer, ids = coded_layer(form, 40, 128), torch.full((24,), -1)
    bits, _, unit, table = layer.how

    def step(ids):
        return embed_groups(ids, *layer.weight, 3, 37, 128, bits, torch.bfloat16, unit, table)

    tape = record(lambda: step(ids), 24, 1)
    assert len(tape) == 1
    for count in (24, 1, 7):
        ids.copy_(torch.arange(24) * 2)
        assert same(tape.replay(count, 1), step(ids[:count]))
        assert step(ids[:count])[2:].any() == (count > 2)
