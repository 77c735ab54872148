"""What a tape takes down is run again on what its buffers hold; what it could not run is refused."""

import pytest
import torch

from quire.kernels.cpu.arena import Arena
from quire.kernels.cpu.tape import NotNativeError, record
from quire.kernels.linear.activation import gated_activation
from quire.kernels.linear.linear import linear, norm_linear
from quire.kernels.linear.norm import rms_norm
from quire.kernels.linear.pack import pack

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
