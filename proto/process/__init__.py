"""Begin and end of an engine's processes: parent death, departure, exit codes, version."""
