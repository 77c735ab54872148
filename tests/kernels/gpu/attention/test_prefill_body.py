"""Which prefill body a model gets on a chip, and what none takes."""

import pytest
import torch

from quire.kernels.attention.attention import AttentionRule
from quire.kernels.attention.tile_schedule import tokens_per_tile
from quire.kernels.attention.window import Chunk
from quire.kernels.gpu.attention.prefill import prefill
from quire.kernels.gpu.attention.tiles import select_prefill_body


@pytest.mark.parametrize(
    ("capability", "block_size", "head_dim", "query_type", "cache_type", "window", "keys"),
    [
        (90, 64, 128, torch.bfloat16, torch.bfloat16, None, 64),
        (90, 128, 128, torch.float16, torch.float16, None, 128),
        (90, 256, 64, torch.bfloat16, torch.float8_e4m3fn, 4096, 64),
        (90, 128, 128, torch.float16, torch.float16, 4096, 128),
        (90, 256, 64, torch.bfloat16, torch.bfloat16, 100, 64),
        (90, 64, 64, torch.bfloat16, torch.bfloat16, 63, None),
        (90, 32, 128, torch.bfloat16, torch.bfloat16, None, None),
        (90, 64, 256, torch.bfloat16, torch.bfloat16, None, None),
        (90, 64, 96, torch.bfloat16, torch.bfloat16, None, None),
        (90, 64, 128, torch.float32, torch.bfloat16, None, None),
        (90, 64, 128, torch.bfloat16, torch.float32, None, None),
        (80, 64, 128, torch.bfloat16, torch.bfloat16, None, None),
        (89, 64, 128, torch.bfloat16, torch.bfloat16, None, None),
        (100, 64, 128, torch.bfloat16, torch.bfloat16, None, None),
        (90, 64, 128, torch.bfloat16, torch.bfloat16, Chunk(4096), None),
    ],
)
def test_only_what_the_specialized_body_can_do_goes_to_it(
    capability, block_size, head_dim, query_type, cache_type, window, keys
):
    body = select_prefill_body(capability, block_size, head_dim, query_type, cache_type, window)
    assert body.specialized == (keys is not None)
    if keys is not None:
        assert (body.rows, body.keys, body.num_warps) == (128, keys, 4)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256, 512])
@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100, 120])
@pytest.mark.parametrize("query_type", [torch.bfloat16, torch.float32])
def test_the_programs_of_a_tile_share_its_rows_evenly(capability, head_dim, query_type):
    assert 128 % select_prefill_body(capability, 16, head_dim, query_type, query_type).rows == 0


def test_a_tile_holds_as_many_whole_tokens_as_fit_128_rows():
    assert [tokens_per_tile(group) for group in (1, 3, 4, 7, 128, 129)] == [128, 42, 32, 18, 1, 1]


@pytest.mark.parametrize(
    ("query", "scale", "message"),
    [
        (torch.zeros(1, 3, 2, 64), -1.0, r"^rule\.scale: must be positive"),
        (torch.zeros(1, 3, 129, 64), 1.0, "^query: at most 128 query heads"),
        (torch.zeros(1, 3, 2, 64).double(), 1.0, r"^query: torch\.float64 runs on the CPU only"),
    ],
)
def test_what_no_body_can_do_is_refused_by_name(query, scale, message):
    cache = torch.zeros(2, 16, 1, 64)
    with pytest.raises(ValueError, match=message):
        prefill(query, cache, cache, None, None, AttentionRule(scale), None, None, None, torch.zeros(3, 64))
