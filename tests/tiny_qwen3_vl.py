"""A tiny random Qwen3-VL checkpoint."""

import tiny_qwen_vl
from tiny_qwen_vl import MERGE, TinyQwen

PATCH = 16
FACTOR = PATCH * MERGE
"""Pixels of the side of a square for which one token stands."""
TEXT = {
    **tiny_qwen_vl.TEXT,
    "head_dim": 16,
    "rope_parameters": {**tiny_qwen_vl.TEXT["rope_parameters"], "mrope_interleaved": True},
}
VISION = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 64,
    "patch_size": PATCH,
    "spatial_merge_size": MERGE,
    "num_position_embeddings": 36,
    "deepstack_visual_indexes": [0, 2],
    "initializer_range": 0.15,
}
FAMILY = TinyQwen("Qwen3VL", PATCH, VISION, TEXT)
write_checkpoint, Reference = FAMILY.write_checkpoint, FAMILY.reference
