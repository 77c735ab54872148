"""Splitting what a model thinks aloud from its answer."""
