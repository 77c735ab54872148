"""Families of decoders whose experts are chosen in ways of their own."""
