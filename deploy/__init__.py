"""Command line, configuration, launcher and supervisor, client commands, benchmarks, the embedded model."""
