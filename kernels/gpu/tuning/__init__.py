"""Tile sizes as data, and how they are measured."""
