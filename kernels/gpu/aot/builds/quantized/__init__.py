"""Builds of the room `quantized`."""
