"""Quantization schemes: one object per linear layer."""
