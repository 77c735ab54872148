"""All operations of a step in their order, and what runs each on a device."""

from quire.kernels.activation import silu_mul
from quire.kernels.attention import paged_attention
from quire.kernels.block_copy import copy_blocks
from quire.kernels.embedding import embed_shard
from quire.kernels.kv_store import store_kv
from quire.kernels.norm import add_rms_norm, rms_norm
from quire.kernels.prepare import prepare
from quire.kernels.rope import apply_rotary
from quire.kernels.sample import draw, penalize, truncate

OPERATIONS = (
    copy_blocks,
    prepare,
    embed_shard,
    rms_norm,
    add_rms_norm,
    apply_rotary,
    store_kv,
    paged_attention,
    silu_mul,
    penalize,
    truncate,
    draw,
)


def implementations(device_type: str) -> dict[str, str]:
    """Operation -> the function that runs it on `device_type` ("cpu", "cuda"), as module and name."""
    found = {operation.name: operation.implementation(device_type) for operation in OPERATIONS}
    return {name: f"{function.__module__}.{function.__name__}" for name, function in found.items()}
