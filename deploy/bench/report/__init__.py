"""Results of a benchmark: as a table, as JSON, as a plot."""
