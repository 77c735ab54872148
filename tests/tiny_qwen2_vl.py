"""A tiny random Qwen2-VL checkpoint."""

from tiny_qwen_vl import MERGE, TinyQwen

PATCH = 14
VISION = {
    "depth": 3,
    "embed_dim": 32,
    "mlp_ratio": 2,
    "num_heads": 2,
    "hidden_size": 64,
    "patch_size": PATCH,
    "spatial_merge_size": MERGE,
    "initializer_range": 0.15,
}
FAMILY = TinyQwen("Qwen2VL", PATCH, VISION)
write_checkpoint, Reference = FAMILY.write_checkpoint, FAMILY.reference
