"""Compiled forms of what follows the output head, for CPUs."""
