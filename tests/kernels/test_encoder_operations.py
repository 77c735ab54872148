"""Attention in both directions, rotation in place, layer norm and the plain activation against their formulas in
float64, on every form of the CPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import gelu, silu
from transformers.activations import QuickGELUActivation
from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb_vision

from quire.kernels.attention.encoder_attention import encoder_attention, encoder_attention_reference
from quire.kernels.attention.rope_in_place import rope_in_place, rope_in_place_reference
from quire.kernels.linear.activation import GATES, activation
from quire.kernels.linear.layer_norm import layer_norm, layer_norm_reference

sizes = settings(max_examples=40)
ROWS = st.lists(st.integers(1, 40), max_size=5)


def packed(lengths, num_heads, head_dim, seed=0, padding=2):
    """(qkv with NaN in the padding, starts)"""
    qkv = torch.randn((sum(lengths) + padding, 3 * num_heads * head_dim), generator=torch.Generator().manual_seed(seed))
    qkv[sum(lengths) :] = torch.nan
    return qkv, torch.tensor([0, *lengths]).cumsum(0).int()


@sizes
@given(ROWS, st.sampled_from([1, 3]), st.sampled_from([4, 12]), st.integers(0, 99))
def test_every_token_sees_all_of_its_row_and_nothing_else(lengths, num_heads, head_dim, seed):
    qkv, starts = packed(lengths, num_heads, head_dim, seed)
    arguments = (qkv, starts, tuple(lengths), num_heads, 0.3)
    for form in (encoder_attention, encoder_attention_reference):
        out = form(*arguments)
        assert out.shape == (len(qkv), num_heads * head_dim)
        for start, length in zip(starts.tolist(), lengths, strict=False):
            q, k, v = qkv[start : start + length].double().view(length, 3, num_heads, head_dim).permute(1, 2, 0, 3)
            expected = (q @ k.mT * 0.3).softmax(-1) @ v
            actual = out[start : start + length].view(length, num_heads, head_dim).transpose(0, 1)
            torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bit_attention_stays_near_float32(dtype):
    qkv, starts = packed([5, 33], 2, 16, padding=0)
    expected = encoder_attention_reference(qkv.to(dtype), starts, (5, 33), 2, 0.25)
    torch.testing.assert_close(
        encoder_attention(qkv.to(dtype), starts, (5, 33), 2, 0.25), expected, rtol=2e-2, atol=2e-2
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [16, 72, 80])
def test_images_of_many_patches_are_attended_to_as_by_transformers_with_rotation(dtype, head_dim):
    lengths, num_heads = (70, 1, 333), 2
    qkv, starts = packed(lengths, num_heads, head_dim, padding=0)
    qkv = qkv.to(dtype)
    angles = 50 * torch.rand((len(qkv), head_dim // 2), generator=torch.Generator().manual_seed(1))
    sides = qkv.view(len(qkv), 3, num_heads, head_dim).clone().unbind(1)
    twice = angles.repeat(1, 2)
    query, key = apply_rotary_pos_emb_vision(sides[0], sides[1], twice.cos(), twice.sin())
    turned = torch.stack((query, key, sides[2]), 1).flatten(1)
    exact = dtype == torch.float32
    for rotate in (rope_in_place, rope_in_place_reference):
        ours = qkv.clone()
        rotate(ours, angles.cos(), angles.sin(), num_heads)
        unit = torch.finfo(dtype).eps
        torch.testing.assert_close(ours, turned, rtol=2 * unit, atol=1e-5 if exact else unit)
    mixed = encoder_attention(turned, starts, lengths, num_heads, head_dim**-0.5)
    expected = encoder_attention_reference(turned.double(), starts, lengths, num_heads, head_dim**-0.5)
    tolerance = 1e-5 if exact else 2e-2
    torch.testing.assert_close(mixed.double(), expected, rtol=tolerance, atol=tolerance)


def test_what_rotation_cannot_take_is_refused_by_name():
    qkv, angle = torch.ones((2, 24)), torch.ones((2, 4))
    with pytest.raises(ValueError, match=r"^qkv: 24 columns are not queries, keys and values of 3 heads"):
        rope_in_place(qkv, angle, angle, 3)
    with pytest.raises(ValueError, match=r"^cos: rotates 8 elements of a head that has 4"):
        rope_in_place(qkv, angle, angle, 2)
    with pytest.raises(ValueError, match=r"^sin: expected shape \[2, 4\]"):
        rope_in_place(qkv, angle, angle[:1], 1)
    with pytest.raises(ValueError, match=r"^cos: expected torch.float32"):
        rope_in_place(qkv, angle.half(), angle, 1)
    with pytest.raises(ValueError, match=r"^qkv: must be contiguous"):
        rope_in_place(torch.ones((24, 2)).T, angle, angle, 1)


def test_what_attention_cannot_take_is_refused_by_name():
    qkv, starts = packed([3], 2, 4)
    with pytest.raises(ValueError, match=r"^qkv: 24 columns"):
        encoder_attention(qkv, starts, (3,), 5, 1.0)
    with pytest.raises(ValueError, match=r"^starts: expected shape \[3\]"):
        encoder_attention(qkv, starts, (3, 1), 2, 1.0)
    with pytest.raises(ValueError, match=r"^lengths_host: 9 tokens"):
        encoder_attention(qkv, starts, (9,), 2, 1.0)
    with pytest.raises(ValueError, match=r"^scale"):
        encoder_attention(qkv, starts, (3,), 2, 0.0)


@sizes
@given(st.integers(1, 9), st.integers(2, 65), st.booleans(), st.integers(0, 99))
def test_layer_norm_has_mean_and_variance_of_the_sum(num_tokens, size, add, seed):
    generator = torch.Generator().manual_seed(seed)
    x, residual = 3 * torch.randn((2, num_tokens, size), generator=generator) + 1
    weight, bias = torch.randn((2, size), generator=generator)
    total = (x + residual if add else x).double()
    spread = (total.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    expected = (total - total.mean(-1, keepdim=True)) / spread * weight.double() + bias.double()
    for form in (layer_norm, layer_norm_reference):
        actual = form(x, residual if add else None, weight, bias, 1e-5)
        torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_layer_norm_of_sixteen_bit_numbers_sums_in_float32(dtype):
    x = (100 * torch.randn((3, 512), generator=torch.Generator().manual_seed(1)) + 300).to(dtype)
    weight, bias = torch.ones(512, dtype=dtype), torch.zeros(512, dtype=dtype)
    expected = layer_norm_reference(x, None, weight, bias, 1e-5)
    torch.testing.assert_close(layer_norm(x, None, weight, bias, 1e-5), expected, rtol=1e-2, atol=1e-2)


def test_what_layer_norm_cannot_take_is_refused_by_name():
    x, weight = torch.ones((2, 8)), torch.ones(8)
    with pytest.raises(ValueError, match=r"^bias: expected shape \[8\]"):
        layer_norm(x, None, weight, torch.ones(7), 1e-5)
    with pytest.raises(ValueError, match=r"^residual: expected shape \[2, 8\]"):
        layer_norm(x, torch.ones((1, 8)), weight, weight, 1e-5)
    with pytest.raises(ValueError, match=r"^eps"):
        layer_norm(x, None, weight, weight, 0.0)


def test_the_plain_activation_is_the_gates_own():
    x = torch.linspace(-9, 9, 101).view(1, -1)
    torch.testing.assert_close(activation(x, "gelu"), gelu(x))
    torch.testing.assert_close(activation(x, "gelu_tanh"), gelu(x, approximate="tanh"))
    torch.testing.assert_close(activation(x, "silu"), silu(x))
    torch.testing.assert_close(activation(x, "gelu_quick"), QuickGELUActivation()(x))
    with pytest.raises(ValueError, match=r"^kind: must be one of silu"):
        activation(x, "relu")
    assert set(GATES) == {"silu", "gelu", "gelu_tanh"}


def test_a_step_without_tokens_has_no_attention():
    qkv, starts = packed([], 2, 4, padding=0)
    assert encoder_attention(qkv, starts, (), 2, 1.0).shape == (0, 8)
