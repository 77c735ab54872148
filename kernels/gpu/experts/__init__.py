"""Layers of experts on GPUs."""
