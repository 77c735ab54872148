"""Recognising tool calls in what a model writes: one small file per format, one row in the table."""
