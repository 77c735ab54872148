"""Kernels compiled for chips that are not here."""
