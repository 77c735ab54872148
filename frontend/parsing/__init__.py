"""Taking an answer's text apart while it arrives: reasoning, tool calls, and the rest."""
