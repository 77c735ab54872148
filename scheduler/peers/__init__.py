"""Frontends and workers as the loop sees them."""
