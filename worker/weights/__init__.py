"""Checkpoints: streaming safetensors slices into declared shards."""
