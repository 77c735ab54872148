"""A tiny random Qwen2.5-VL checkpoint, whose windows are of 2 * 2 tokens."""

from tiny_qwen_vl import MERGE, TinyQwen

PATCH = 14
VISION = {
    "depth": 4,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_heads": 2,
    "out_hidden_size": 64,
    "patch_size": PATCH,
    "spatial_merge_size": MERGE,
    "window_size": 2 * MERGE * PATCH,
    "fullatt_block_indexes": [1, 3],
    "tokens_per_second": 2,
    "initializer_range": 0.15,
}
FAMILY = TinyQwen("Qwen2_5_VL", PATCH, VISION)
write_checkpoint, Reference = FAMILY.write_checkpoint, FAMILY.reference
