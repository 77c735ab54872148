"""Norms, activation and embedding against their formulas in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.linear.activation import gated_activation
from quire.kernels.linear.embedding import embed_shard
from quire.kernels.linear.norm import add_rms_norm, rms_norm
from quire.kernels.linear.pack import pack

sizes = settings(max_examples=40)


def close(actual, expected):
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-6)


@sizes
@given(st.integers(0, 9), st.integers(1, 33), st.integers(0, 99))
def test_rms_norm_divides_by_the_root_of_the_mean_square(num_tokens, size, seed):
    generator = torch.Generator().manual_seed(seed)
    x, residual = 3 * torch.randn((2, num_tokens, size), generator=generator)
    weight = torch.randn(size, generator=generator)
    for summed in (x, x + residual):
        wide = summed.double()
        expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
        if summed is x:
            close(rms_norm(x, weight, 1e-5), expected)
        else:
            normed, total = add_rms_norm(x, residual, weight, 1e-5)
            close(normed, expected)
            close(total, wide)


def test_rms_norm_of_half_precision_does_not_overflow():
    x = torch.full((1, 8), 60000.0, dtype=torch.float16)
    close(rms_norm(x, torch.ones(8, dtype=torch.float16), 1e-5), torch.ones((1, 8), dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rms_norm_by_gains_of_float32_is_rounded_once(dtype):
    x, residual = torch.randn((2, 5, 16), generator=torch.Generator().manual_seed(0)).to(dtype)
    weight = 1 + 0.001 * torch.randn(16, generator=torch.Generator().manual_seed(1))
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, rms_norm(total.float(), weight, 1e-5).to(dtype))
    assert torch.equal(rms_norm(total, weight, 1e-5), normed)


def test_rms_norm_of_heads_works_on_the_last_dimension():
    x = torch.randn((5, 3, 8), generator=torch.Generator().manual_seed(0))
    weight = torch.arange(8.0)
    close(rms_norm(x, weight, 1e-5), torch.stack([rms_norm(head, weight, 1e-5).double() for head in x]))


FORMULAS = {
    "silu": lambda x: x / (1 + (-x).exp()),
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
}


@sizes
@given(st.sampled_from(sorted(FORMULAS)), st.integers(0, 9), st.integers(1, 20), st.integers(0, 99))
def test_the_first_half_gates_the_second(kind, num_tokens, size, seed):
    x = 5 * torch.randn((num_tokens, 2 * size), generator=torch.Generator().manual_seed(seed))
    gate, up = x.double().chunk(2, -1)
    torch.testing.assert_close(gated_activation(x, kind).double(), FORMULAS[kind](gate) * up, rtol=1e-5, atol=1e-5)


@sizes
@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 99))
def test_shares_of_the_vocabulary_sum_to_the_embedding_and_padding_is_never_read(vocab_size, num_ranks, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn((vocab_size, 4), generator=generator)
    tokens = torch.randint(0, vocab_size, (11,), generator=generator)
    rows = -(-vocab_size // num_ranks)
    total = torch.zeros((11, 4))
    for rank in range(num_ranks):
        share = weight[rank * rows : (rank + 1) * rows]
        padded = torch.full((rows, 4), torch.nan)
        padded[: len(share)] = share
        total += embed_shard(tokens, padded, rank * rows, len(share))
    assert torch.equal(total, weight[tokens])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("first", "count"), [(0, 48), (7, 40)])
def test_tokens_are_looked_up_in_a_packed_weight(dtype, first, count):
    weight = torch.randn((48, 64), generator=torch.Generator().manual_seed(0)).to(dtype)
    packed, tokens = pack(weight), torch.randint(0, 48, (33,), generator=torch.Generator().manual_seed(1))
    assert packed.dim() > 2
    assert torch.equal(embed_shard(tokens, packed, first, count), embed_shard(tokens, weight, first, count))


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: rms_norm(torch.zeros(2, 4), torch.zeros(3), 1e-5), "x"),
        (lambda: rms_norm(torch.zeros(2, 4), torch.zeros(4).half(), 1e-5), "weight"),
        (lambda: rms_norm(torch.zeros(2, 4), torch.zeros(4), 0.0), "eps"),
        (lambda: add_rms_norm(torch.zeros(2, 4), torch.zeros(1, 4), torch.zeros(4), 1e-5), "residual"),
        (lambda: rms_norm(torch.zeros(4, 2).T, torch.zeros(4), 1e-5), "x"),
        (lambda: gated_activation(torch.zeros(2, 3), "silu"), "x"),
        (lambda: gated_activation(torch.zeros(4, 2).T, "silu"), "x"),
        (lambda: gated_activation(torch.zeros(2, 4), "relu"), "kind"),
        (lambda: embed_shard(torch.zeros(2), torch.zeros(3, 4), 0, 3), "token_ids"),
        (lambda: embed_shard(torch.zeros(2).long(), torch.zeros(3, 4), 0, 4), "count"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(call, argument):
    with pytest.raises(ValueError, match=f"^{argument}:"):
        call()


def test_an_argument_on_another_device_is_refused():
    with pytest.raises(ValueError, match=r"^weight: expected on cpu, got meta"):
        rms_norm(torch.zeros(2, 4), torch.zeros(4, device="meta"), 1e-5)
