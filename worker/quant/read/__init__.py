"""Readers of quantized checkpoints: what each format states, and where its tensors lie."""
