"""Parsers of tool calls in a model's text: one small file per format, one row in the table."""
