"""Compiled forms of the operations for CPUs; imported only where they run."""
