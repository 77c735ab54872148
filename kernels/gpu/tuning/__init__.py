"""Measuring tile sizes, which `quire bench tune` writes into the table of the device."""
