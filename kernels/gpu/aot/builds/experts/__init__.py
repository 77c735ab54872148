"""Builds of the kernels of layers of experts."""
