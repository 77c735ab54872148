"""All operations of a step in their order, and what runs each on a device."""

from quire.kernels.activation import activation, gated_activation
from quire.kernels.attention import paged_attention
from quire.kernels.block_copy import copy_blocks
from quire.kernels.cut import cut
from quire.kernels.embedding import embed_shard
from quire.kernels.encoder_attention import encoder_attention
from quire.kernels.layer_norm import layer_norm
from quire.kernels.linear import linear, norm_linear
from quire.kernels.linear_int8 import linear_int8, norm_linear_int8
from quire.kernels.norm import add_rms_norm, rms_norm
from quire.kernels.penalize import mask_tokens, penalize
from quire.kernels.prepare import prepare
from quire.kernels.rotate_store import rotate_store
from quire.kernels.sample import choose
from quire.kernels.score import best, finite_rows, score
from quire.kernels.work_list import fill_work_list

OPERATIONS = (
    copy_blocks,
    prepare,
    fill_work_list,
    embed_shard,
    rms_norm,
    add_rms_norm,
    linear,
    norm_linear,
    linear_int8,
    norm_linear_int8,
    rotate_store,
    paged_attention,
    gated_activation,
    encoder_attention,
    layer_norm,
    activation,
    best,
    finite_rows,
    penalize,
    mask_tokens,
    cut,
    choose,
    score,
)


def implementations(device_type: str) -> dict[str, str]:
    """Operation -> the function that runs it on `device_type` ("cpu", "cuda"), as "module:name"."""
    return {operation.name: operation.form(device_type) for operation in OPERATIONS}
