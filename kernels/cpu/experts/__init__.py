"""Layers of experts on CPUs."""
