"""What a worker's host, machine and loop cost: the measuring halves of `quire bench`."""
