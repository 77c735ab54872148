"""Builds of the sampling kernels."""
