"""Families of decoders with experts: one file for each family of configs that share a reader."""
