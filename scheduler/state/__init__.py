"""What is: sequences, queues, memory, plans in flight. No clock and no I/O."""
