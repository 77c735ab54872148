"""One step: inputs, graphs, the runner, and the thread that waits for results."""
