"""Towers of SigLIP's blocks over items of one size."""
