"""The state of the engine: sequences, queues, memory, plans in flight. No clock and no I/O."""
