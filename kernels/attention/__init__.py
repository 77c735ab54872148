"""Attention and what feeds it: reference forms."""
