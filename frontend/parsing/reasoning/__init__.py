"""Parsers that split a model's reasoning from its answer."""
