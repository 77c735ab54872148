"""The measuring halves of `quire bench` for a worker's host, machine and loop."""
