"""Kinds of parts of a layer, as frozen values."""
