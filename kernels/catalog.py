"""All operations of a step in their order, and what runs each on a device."""

from quire.kernels.attention.attention import paged_attention
from quire.kernels.attention.block_copy import copy_blocks
from quire.kernels.attention.encoder_attention import encoder_attention
from quire.kernels.attention.part_norm import part_norm, part_squares
from quire.kernels.attention.query_factors import query_factors, scale_queries
from quire.kernels.attention.rope_angles import rope_angles
from quire.kernels.attention.rope_in_place import rope_in_place
from quire.kernels.attention.rope_store_kv import rope_store_kv
from quire.kernels.attention.tile_schedule import fill_tile_schedule
from quire.kernels.attention.values import with_values
from quire.kernels.experts.coded import coded_experts
from quire.kernels.experts.counted import count_inputs, scale_weights
from quire.kernels.experts.experts import experts
from quire.kernels.experts.route import route
from quire.kernels.experts.shared import add_shared
from quire.kernels.linear.activation import activation, gated, gated_activation
from quire.kernels.linear.embed_group_words import embed_group_words
from quire.kernels.linear.embed_groups import embed_groups
from quire.kernels.linear.embedding import embed_shard
from quire.kernels.linear.layer_norm import layer_norm
from quire.kernels.linear.linear import linear, norm_linear
from quire.kernels.linear.linear_f8 import gated_linear_f8, linear_f8, norm_linear_f8
from quire.kernels.linear.linear_f8_blocks import gated_linear_f8_blocks, linear_f8_blocks, norm_linear_f8_blocks
from quire.kernels.linear.linear_group_words import linear_group_words, norm_linear_group_words
from quire.kernels.linear.linear_groups import linear_groups, norm_linear_groups
from quire.kernels.linear.linear_int8 import gated_linear_int8, linear_int8, norm_linear_int8
from quire.kernels.linear.norm import add_rms_norm, rms_norm
from quire.kernels.linear.side_by_side import side_by_side
from quire.kernels.prepare_inputs import prepare_inputs
from quire.kernels.rows import add, scale, widen
from quire.kernels.sampling.append_tokens import append_tokens
from quire.kernels.sampling.penalize import mask_tokens, penalize
from quire.kernels.sampling.sample import sample
from quire.kernels.sampling.score import best, finite_rows, score
from quire.kernels.sampling.top_k_top_p import top_k_top_p

OPERATIONS = (
    copy_blocks,
    prepare_inputs,
    fill_tile_schedule,
    embed_shard,
    embed_groups,
    embed_group_words,
    scale,
    rope_angles,
    query_factors,
    rms_norm,
    add_rms_norm,
    linear,
    norm_linear,
    linear_int8,
    norm_linear_int8,
    gated_linear_int8,
    linear_f8,
    norm_linear_f8,
    gated_linear_f8,
    linear_f8_blocks,
    norm_linear_f8_blocks,
    gated_linear_f8_blocks,
    linear_groups,
    norm_linear_groups,
    side_by_side,
    linear_group_words,
    norm_linear_group_words,
    part_squares,
    part_norm,
    with_values,
    rope_store_kv,
    scale_queries,
    paged_attention,
    gated_activation,
    gated,
    add,
    widen,
    route,
    scale_weights,
    count_inputs,
    experts,
    coded_experts,
    add_shared,
    rope_in_place,
    encoder_attention,
    layer_norm,
    activation,
    best,
    finite_rows,
    penalize,
    mask_tokens,
    top_k_top_p,
    sample,
    append_tokens,
    score,
)


def implementations(device_type: str) -> dict[str, str]:
    """Operation -> the function that runs it on `device_type` ("cpu", "cuda"), as "module:name"."""
    return {operation.name: operation.form(device_type) for operation in OPERATIONS}
