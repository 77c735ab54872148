"""Both bodies of paged attention behind one call, in the interpreter."""

import dataclasses

import pytest
import torch

from quire.kernels.attention.attention import paged_attention, paged_attention_reference
from quire.kernels.attention.tile_schedule import KEYS_PER_TILE, tile_shape, tokens_per_tile
from quire.kernels.attention.window import Chunk
from quire.kernels.gpu.attention import attention

MIXED = [(1, 130), (1, 5), (40, 60), (1, 64), (0, 0), (3, 3), (0, 0)]


def check(step):
    """The rows' tokens are the reference's; those of padding are nobody's."""
    out = attention.paged_attention(*step.arguments())
    wanted = paged_attention_reference(*step.arguments())
    real = step.batch.num_tokens
    assert out.shape == wanted.shape
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if out.dtype == torch.float32 else {"rtol": 1e-2, "atol": 1e-2}
    torch.testing.assert_close(out[:real], wanted[:real], **tolerance)


@pytest.mark.parametrize("window", [None, 1, 20, Chunk(24)])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_mixed_step_is_the_reference_s(paged_step, window, sinks, ahead):
    check(paged_step(MIXED, tile_shape("cuda", 2), window=window, sinks=sinks, soft_cap=3.0, ahead=ahead))


@pytest.mark.parametrize("cache_type", [torch.bfloat16, torch.float8_e4m3fn])
def test_both_bodies_read_the_same_cache(paged_step, cache_type):
    types = {"query_type": torch.bfloat16, "cache_type": cache_type}
    check(paged_step(MIXED, tile_shape("cuda", 3), num_kv_heads=2, group=3, head_dim=64, **types))


def test_a_step_of_one_token_rows_launches_no_prefill(paged_step, monkeypatch):
    step = paged_step([(1, 70), (1, 3), (0, 0)], tile_shape("cuda", 2), padding=1)
    monkeypatch.setattr(attention, "prefill", None)
    check(dataclasses.replace(step, batch=dataclasses.replace(step.batch, num_decodes=2)))


def test_a_row_of_several_tokens_among_rows_of_padding_launches_prefill(paged_step):
    check(paged_step([(3, 70), (0, 0), (0, 0), (0, 0)], tile_shape("cuda", 2), padding=0))


def test_a_step_without_tokens_or_rows_gives_nothing(paged_step):
    empty = paged_step([], tile_shape("cuda", 2), padding=0)
    assert attention.paged_attention(*empty.arguments()).shape == (0, 32)
    padding = paged_step([], tile_shape("cuda", 2), padding=3)
    assert attention.paged_attention(*padding.arguments()).shape == (3, 32)


def test_only_a_device_whose_attention_reads_a_schedule_has_a_tile_shape():
    assert tile_shape("cuda", 4) == (tokens_per_tile(4), KEYS_PER_TILE)
    assert tile_shape("cpu", 4) is None


def test_what_no_kernel_does_is_refused_by_name(paged_step):
    step = paged_step([(1, 3)], tile_shape("cuda", 2), query_type=torch.float64)
    with pytest.raises(ValueError, match=r"query, keys: float64 .* use float32"):
        attention.paged_attention(*step.arguments())
    step = paged_step([(1, 3)], tile_shape("cuda", 2), head_dim=528)
    with pytest.raises(ValueError, match="query: heads of at most 512 elements run on GPUs, got 528"):
        attention.paged_attention(*step.arguments())
    step = paged_step([(1, 3)], tile_shape("cuda", 2), window=5)
    without = dataclasses.replace(step.batch, schedules={})
    with pytest.raises(ValueError, match=r"batch\.schedules: holds no schedule for window 5"):
        attention.paged_attention(*dataclasses.replace(step, batch=without).arguments())


def test_the_operation_names_this_form_for_cuda():
    module, _, function = paged_attention.form("cuda").partition(":")
    assert (module, function) == (attention.__name__, attention.paged_attention.__name__)
