"""Linear layers, and what stands between them, on CPUs."""
