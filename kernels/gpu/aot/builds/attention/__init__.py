"""Builds of the attention kernels."""
