"""Begin and end of an engine's processes: parent death, exit, exit codes, version."""
