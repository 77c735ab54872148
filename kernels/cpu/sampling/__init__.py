"""Compiled and numpy forms of what follows the output head, for CPUs."""
