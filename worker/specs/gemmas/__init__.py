"""Families of Gemma whose layers differ in more than windows and ropes."""
