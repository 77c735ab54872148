"""How processes of an engine begin and end."""
