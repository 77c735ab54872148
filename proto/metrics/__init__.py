"""Names and shapes of what is measured."""
