"""Specs of models that run as modules of the transformers library: what it says of them, as data without torch."""
