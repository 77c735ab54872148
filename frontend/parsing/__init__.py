"""Parsers of an answer's text while it arrives: reasoning, tool calls, and the rest."""
